# Packs are discovered: a folder with a manifest.json is a pack; each of its cells is built if its file is there.
add_library(patchbench_ops SHARED)
set_target_properties(patchbench_ops PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(patchbench_ops PRIVATE ${patchbench_torch_best})

file(GLOB harness_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/repro/harness/*.cpp)
add_library(patchbench_harness STATIC ${harness_sources})
target_include_directories(patchbench_harness PUBLIC ${CMAKE_SOURCE_DIR}/repro ${CMAKE_SOURCE_DIR}/packs)
target_link_libraries(patchbench_harness PUBLIC patchbench_core patchbench_exec ${patchbench_torch_best} PRIVATE patchbench_warnings)
# torch's headers carry a newer fmt than the packaged library; header-only, the two keep apart by their inline namespaces.
target_compile_definitions(patchbench_harness PUBLIC FMT_HEADER_ONLY=1)
use_torch_pch(patchbench_harness)

# add_pack(<slug>): the op objects go into patchbench_ops, the reproducer becomes repro_<slug>, the bench bench_<slug>.
# Object libraries: a static library would lose its registrations silently.
function(add_pack slug)
  set(pack ${CMAKE_SOURCE_DIR}/packs/${slug})
  if(EXISTS ${pack}/op.cpp)
    add_library(op_${slug} OBJECT ${pack}/op.cpp)
    target_link_libraries(op_${slug} PRIVATE ${patchbench_torch_best} patchbench_warnings)
    use_torch_pch(op_${slug})
    target_link_libraries(patchbench_ops PRIVATE op_${slug})
    target_sources(patchbench_ops PRIVATE $<TARGET_OBJECTS:op_${slug}>)
    file(GLOB kernels CONFIGURE_DEPENDS ${pack}/*.cu)
    if(PATCHBENCH_CUDA AND kernels)
      add_library(kernel_${slug} OBJECT ${kernels})
      target_link_libraries(kernel_${slug} PRIVATE CUDA::cudart patchbench_warnings)
      target_compile_options(kernel_${slug} PRIVATE
        $<TARGET_PROPERTY:patchbench_torch_cuda,INTERFACE_COMPILE_OPTIONS>)
      target_sources(patchbench_ops PRIVATE $<TARGET_OBJECTS:kernel_${slug}>)
    endif()
  endif()
  foreach(kind repro bench)
    set(file ${CMAKE_SOURCE_DIR}/repro/${slug}/${kind}.cpp)
    if(EXISTS ${file})
      add_executable(${kind}_${slug} ${file})
      target_link_libraries(${kind}_${slug} PRIVATE patchbench_harness -Wl,--no-as-needed patchbench_ops
        -Wl,--as-needed patchbench_warnings)
      use_torch_pch(${kind}_${slug})
    endif()
  endforeach()
endfunction()

file(GLOB manifests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/packs/*/manifest.json)
foreach(manifest ${manifests})
  get_filename_component(folder ${manifest} DIRECTORY)
  get_filename_component(slug ${folder} NAME)
  add_pack(${slug})
endforeach()
