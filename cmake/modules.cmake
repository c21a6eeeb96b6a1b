# The project's vocabulary. Sources are discovered, never listed.

# add_patchbench_module(<name> <folder> [DEPS ...]): a static library of every .cpp in a flat folder.
function(add_patchbench_module name folder)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/main[^/]*\\.cpp$")
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR}/runner)
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE patchbench_warnings)
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
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 900 LABELS "${ARG_LABELS}")
endfunction()
