# patchbench-judge: the reproducers and explore_function as one program, for the wheel of that name. Every `main` gets its program's
# name, and the linker takes the objects that the program is made of. libcrypto and fmt are linked in; libtorch stays outside, found by the runner.
execute_process(COMMAND ${CMAKE_SOURCE_DIR}/env/static_libraries.sh OUTPUT_VARIABLE libraries
  OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the static libraries are not there: see the lines above")
endif()
set(suffixes ${CMAKE_FIND_LIBRARY_SUFFIXES})
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
find_library(PATCHBENCH_CRYPTO_ARCHIVE crypto REQUIRED)
set(CMAKE_FIND_LIBRARY_SUFFIXES ${suffixes})

set(names "")
set(objects "")
# take_program(<target> <word>): what `patchbench-judge WORD` runs.
macro(take_program target word)
  set(object ${CMAKE_BINARY_DIR}/judge/${word}.o)
  add_custom_command(OUTPUT ${object} DEPENDS ${target} $<TARGET_OBJECTS:${target}> VERBATIM
    COMMAND ${CMAKE_OBJCOPY} --redefine-sym main=patchbench_main_${word} $<TARGET_OBJECTS:${target}> ${object})
  list(APPEND objects ${object})
  string(APPEND names "PB_PROGRAM(${word})\n")
endmacro()
take_program(explore_function explore_function)
foreach(manifest ${manifests})
  get_filename_component(folder ${manifest} DIRECTORY)
  get_filename_component(slug ${folder} NAME)
  if(TARGET repro_${slug})
    take_program(repro_${slug} ${slug})
  endif()
  if(TARGET op_${slug})
    list(APPEND objects $<TARGET_OBJECTS:op_${slug}>)
  endif()
endforeach()
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/judge)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/judge/judge_programs.inc CONTENT "${names}")

add_executable(patchbench-judge EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/repro/wheel/main_judge.cpp ${objects})
set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
target_include_directories(patchbench-judge PRIVATE ${CMAKE_BINARY_DIR}/judge)
add_dependencies(patchbench-judge patchbench_function patchbench_harness patchbench_exec patchbench_core)
target_link_options(patchbench-judge PRIVATE -Wl,--allow-shlib-undefined -Wl,--gc-sections -Wl,--strip-all -L${torch_dir}/lib)
target_link_libraries(patchbench-judge PRIVATE patchbench_warnings -Wl,--start-group $<TARGET_FILE:patchbench_function>
  $<TARGET_FILE:patchbench_harness> $<TARGET_FILE:patchbench_op_calls> $<TARGET_FILE:patchbench_exec> $<TARGET_FILE:patchbench_core>
  -lrapidcheck -Wl,--end-group ${libraries}/lib/libfmt.a ${PATCHBENCH_CRYPTO_ARCHIVE} -ltorch_cpu -lc10 Threads::Threads)

if(SKBUILD)
  install(TARGETS patchbench-judge RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR})
  set(notices ${SKBUILD_METADATA_DIR}/licenses/third-party)
  install(FILES ${libraries}/notices/fmt ${CMAKE_SOURCE_DIR}/repro/wheel/NOTICE DESTINATION ${notices})
  install_notices(${notices} libssl-dev librapidcheck-dev nlohmann-json3-dev libvalijson-dev libgcc-12-dev)
endif()
