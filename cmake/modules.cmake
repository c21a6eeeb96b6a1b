# The project's vocabulary. Sources are discovered, never listed.

# The headers that most of the runner and its tests include, parsed once. What they are compiled for is read by people and disks,
# not timed, so -O1: half the compile time of -O3. CLI11 is not among them: gcc instantiates the templates that its inline functions
# use in every file that takes the header, 3 s each, and only runner/cli needs it.
file(WRITE ${CMAKE_BINARY_DIR}/runner_pch.cpp "")
add_library(patchbench_runner_pch OBJECT ${CMAKE_BINARY_DIR}/runner_pch.cpp)
target_compile_options(patchbench_runner_pch PRIVATE -O1)
target_precompile_headers(patchbench_runner_pch PRIVATE <nlohmann/json.hpp> <fmt/format.h> <gtest/gtest.h>
  <algorithm> <filesystem> <fstream> <map> <memory> <optional> <set> <sstream> <string> <vector>)

# reuse_pch(<target> <from>): an executable is compiled -fPIC like the header, for gcc takes no -fPIC header into -fPIE code.
function(reuse_pch target from)
  target_precompile_headers(${target} REUSE_FROM ${from})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)  # ccache needs it
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()

function(use_runner_pch target)
  # gtest is in the header, and this macro of its own must be as it was there.
  target_compile_definitions(${target} PRIVATE GTEST_HAS_PTHREAD=1)
  target_compile_options(${target} PRIVATE -O1)
  reuse_pch(${target} patchbench_runner_pch)
endfunction()

# compile_together(<target>): several files in one unit. What a file includes costs more than what it says, so a first build takes a
# third of the time; names in an unnamed namespace differ within a folder. -DPATCHBENCH_UNITY=OFF compiles each file alone.
option(PATCHBENCH_UNITY "compile several files of a module in one unit" ON)
function(compile_together target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${PATCHBENCH_UNITY} UNITY_BUILD_BATCH_SIZE 7)
endfunction()

# add_patchbench_module(<name> <folder> [DEPS ...]): a static library of every .cpp in a flat folder.
function(add_patchbench_module name folder)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/main[^/]*\\.cpp$")
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR}/runner)
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE patchbench_warnings)
  use_runner_pch(${name})
  compile_together(${name})
endfunction()

# add_patchbench_test(<file> [DEPS ...] [LABELS ...]): one executable per test file; its name is the file's stem.
# Tests find the tree they test through PATCHBENCH_ROOT and the programs they start through PATCHBENCH_BIN.
function(add_patchbench_test file)
  cmake_parse_arguments(ARG "" "" "DEPS;LABELS" ${ARGN})
  get_filename_component(name ${file} NAME_WE)
  add_executable(${name} ${file})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest_main patchbench_warnings)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/runner ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE PATCHBENCH_ROOT="${CMAKE_SOURCE_DIR}"
    PATCHBENCH_BIN="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  if(ARG_LABELS STREQUAL packs)  # whole: a process for each case spends most of its time on loading libtorch
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT 1800 LABELS packs ENVIRONMENT OMP_NUM_THREADS=1)
  else()
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES PROPERTIES TIMEOUT 900 LABELS "${ARG_LABELS}")
  endif()
endfunction()
