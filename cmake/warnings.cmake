# Warnings are errors in our own code; headers of others come in as SYSTEM.
# Designated initialisers leave members at their defaults on purpose, hence no -Wmissing-field-initializers.
add_library(patchbench_warnings INTERFACE)
target_compile_options(patchbench_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Wcast-align
    -Woverloaded-virtual -Wformat=2 -Wno-missing-field-initializers -Werror>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Werror -Werror=all-warnings>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # Bogus -Wrestrict on std::string at -O3 in GCC 12: https://gcc.gnu.org/PR105651; goes when 13 is the oldest compiler.
  target_compile_options(patchbench_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(PATCHBENCH_SANITIZE)
  # Instrumented code makes GCC's flow warnings report what is not there; the other presets hold the warnings.
  target_compile_options(patchbench_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-error>)
  target_compile_options(patchbench_warnings INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  target_link_options(patchbench_warnings INTERFACE -fsanitize=address,undefined)
endif()
find_program(PATCHBENCH_CCACHE ccache)
if(PATCHBENCH_CCACHE)
  # Without this sloppiness (and -fpch-preprocess, see modules.cmake) ccache keeps nothing that includes a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${PATCHBENCH_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${PATCHBENCH_CCACHE})
endif()
