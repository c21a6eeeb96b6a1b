# libtorch is the pip wheel, unpacked by env/bootstrap.sh; its CMake package insists on a CUDA toolkit even for
# CPU code, so the targets are made here.
if(NOT PATCHBENCH_TORCH_SITE)
  execute_process(COMMAND /usr/bin/env python3 ${CMAKE_SOURCE_DIR}/env/fetch.py env
    ${CMAKE_SOURCE_DIR}/env/locks/torch-2.11.txt OUTPUT_VARIABLE site OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE fetch_result)
  if(NOT fetch_result EQUAL 0)
    message(FATAL_ERROR "the torch wheel is not there: run env/bootstrap.sh")
  endif()
  set(PATCHBENCH_TORCH_SITE ${site} CACHE PATH "folder of unpacked wheels that holds torch")
endif()
set(torch_dir ${PATCHBENCH_TORCH_SITE}/torch)
find_package(Python3 REQUIRED COMPONENTS Interpreter)

add_library(patchbench_torch INTERFACE)
target_include_directories(patchbench_torch SYSTEM INTERFACE ${torch_dir}/include
  ${torch_dir}/include/torch/csrc/api/include)
target_link_directories(patchbench_torch INTERFACE ${torch_dir}/lib)
target_link_libraries(patchbench_torch INTERFACE torch_cpu c10)
target_link_options(patchbench_torch INTERFACE -Wl,--allow-shlib-undefined -Wl,-rpath,${torch_dir}/lib)
target_compile_definitions(patchbench_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
# torch's error messages hold __FILE__: no path of this machine goes into a wheel.
target_compile_options(patchbench_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${torch_dir}/include/=
  -fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=>)

if(PATCHBENCH_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  # CMake 3.25 does not know that nvcc 13 takes C++20, so the dialect is a plain option and not asked of CMake.
  set(CMAKE_CUDA_STANDARD_REQUIRED OFF)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  add_library(patchbench_torch_cuda INTERFACE)
  target_link_libraries(patchbench_torch_cuda INTERFACE patchbench_torch -Wl,--no-as-needed torch_cuda c10_cuda
    -Wl,--as-needed CUDA::cudart)
  target_compile_definitions(patchbench_torch_cuda INTERFACE PATCHBENCH_CUDA=1)
  # No -lineinfo: its tables hold paths of this machine. For a profiler: cmake -DCMAKE_CUDA_FLAGS=-lineinfo.
  target_compile_options(patchbench_torch_cuda INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:
    -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_80,code=compute_80
    --expt-relaxed-constexpr>)
  set(patchbench_torch_best patchbench_torch_cuda)
else()
  set(patchbench_torch_best patchbench_torch)
endif()

# Precompiled once, reused by everything that includes <torch/torch.h>.
file(WRITE ${CMAKE_BINARY_DIR}/torch_pch.cpp "")
add_library(patchbench_torch_pch OBJECT ${CMAKE_BINARY_DIR}/torch_pch.cpp)
target_link_libraries(patchbench_torch_pch PRIVATE ${patchbench_torch_best} patchbench_warnings)
target_precompile_headers(patchbench_torch_pch PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:<torch/torch.h$<ANGLE-R>> $<$<COMPILE_LANGUAGE:CXX>:<torch/library.h$<ANGLE-R>>)

# use_torch_pch(<target>): the precompiled torch headers.
function(use_torch_pch target)
  reuse_pch(${target} patchbench_torch_pch)
endfunction()

# use_stable_abi(<target>): torch's headers of the stable ABI alone, as they were in 2.11: what is compiled so runs in every
# later torch. Hidden: the ABI's header-only classes are a copy for each library.
function(use_stable_abi target)
  target_compile_definitions(${target} PRIVATE TORCH_TARGET_VERSION=0x020b000000000000)
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()
