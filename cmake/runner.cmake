# The runner: no torch, no CUDA. Who may include whom: tests/layout_test.cpp.
find_package(PkgConfig REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(Threads REQUIRED)
find_package(GTest REQUIRED)
if(PATCHBENCH_STATIC)
  set(patchbench_git2 patchbench_static_git2)
  set(patchbench_fmt patchbench_static_fmt)
else()
  find_package(fmt REQUIRED)
  pkg_check_modules(GIT2 REQUIRED IMPORTED_TARGET libgit2)
  set(patchbench_git2 PkgConfig::GIT2)
  set(patchbench_fmt fmt::fmt)
endif()
pkg_check_modules(HS REQUIRED IMPORTED_TARGET libhs)
pkg_check_modules(SQLITE3 REQUIRED IMPORTED_TARGET sqlite3)
find_package(SQLiteCpp REQUIRED)
find_path(YAML_INCLUDE yaml.h REQUIRED)  # libyaml-dev
find_library(YAML_LIBRARY yaml REQUIRED)
find_path(EVENT_INCLUDE event2/http.h REQUIRED)  # libevent-dev
find_library(EVENT_LIBRARY event REQUIRED)
find_package(ZLIB REQUIRED)
find_package(CLI11 REQUIRED)
find_path(TOML_INCLUDE toml++/toml.h REQUIRED)  # libtomlplusplus-dev: headers
find_path(MUSTACHE_INCLUDE kainjow/mustache.hpp REQUIRED)  # libkainjow-mustache-dev: one header
# env/bootstrap.sh unpacks these headers into the cache, because the package libvalijson-dev depends on Qt 5 and Poco.
set(cache $ENV{XDG_CACHE_HOME})
if(NOT cache)
  set(cache $ENV{HOME}/.cache)
endif()
cmake_host_system_information(RESULT distribution QUERY DISTRIB_INFO)
find_path(VALIJSON_INCLUDE valijson/validator.hpp HINTS
  ${cache}/patchbench/headers/${distribution_ID}-${distribution_VERSION_ID}/libvalijson-dev/usr/include)
if(NOT VALIJSON_INCLUDE)
  message(FATAL_ERROR "the headers of valijson are not there: run env/bootstrap.sh")
endif()

target_link_libraries(patchbench_runner_pch PRIVATE nlohmann_json::nlohmann_json ${patchbench_fmt} GTest::gtest patchbench_warnings)
add_patchbench_module(patchbench_core runner/core DEPS nlohmann_json::nlohmann_json ${patchbench_fmt} OpenSSL::Crypto)
add_patchbench_module(patchbench_git runner/git DEPS patchbench_core patchbench_exec ${patchbench_git2})
add_patchbench_module(patchbench_exec runner/exec DEPS patchbench_core Threads::Threads)
add_patchbench_module(patchbench_ledger runner/ledger DEPS patchbench_core Threads::Threads SQLiteCpp PkgConfig::SQLITE3)
add_patchbench_module(patchbench_job runner/job DEPS patchbench_core PkgConfig::HS)
# What runs once a line of a log or a record of an import is timed; gcc crashes on a header precompiled at another level.
set_source_files_properties(runner/job/line_matcher.cpp runner/job/triage.cpp runner/job/triage_lines.cpp
  runner/job/triage_state.cpp runner/core/json.cpp runner/core/record.cpp runner/core/observation.cpp
  runner/ledger/appender.cpp
  PROPERTIES COMPILE_OPTIONS -O3 SKIP_PRECOMPILE_HEADERS ON)
add_patchbench_module(patchbench_report runner/report DEPS patchbench_core ZLIB::ZLIB)
add_patchbench_module(patchbench_workbench runner/workbench DEPS patchbench_core)
add_patchbench_module(patchbench_status runner/status DEPS patchbench_workbench patchbench_report patchbench_ledger ${YAML_LIBRARY})
add_patchbench_module(patchbench_run runner/run DEPS patchbench_status patchbench_git patchbench_exec patchbench_job)
add_patchbench_module(patchbench_cli runner/cli DEPS patchbench_run CLI11::CLI11 ${EVENT_LIBRARY})

target_include_directories(patchbench_report SYSTEM PRIVATE ${MUSTACHE_INCLUDE})
target_include_directories(patchbench_core SYSTEM PRIVATE ${VALIJSON_INCLUDE} ${TOML_INCLUDE})

add_executable(patchbench runner/cli/main.cpp)
target_link_libraries(patchbench PRIVATE patchbench_cli patchbench_warnings)
# An installed program has no source folder: it finds what it reads from where it lies (workbench/context.cpp).
if(PATCHBENCH_STATIC)
  set(source_folder "")
else()
  set(source_folder ${CMAKE_SOURCE_DIR})
endif()
target_compile_definitions(patchbench_workbench PUBLIC PATCHBENCH_SOURCE_DIR="${source_folder}"
  PATCHBENCH_VERSION="${PROJECT_VERSION}")
add_executable(patchbench-sandbox runner/exec/main_sandbox.cpp)
target_link_libraries(patchbench-sandbox PRIVATE patchbench_exec patchbench_warnings)
