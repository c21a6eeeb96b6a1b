# PATCHBENCH_STATIC: programs without a shared library, for the wheel: one file for every glibc from 2.17 on.
# Archives come from Debian's -dev packages; libgit2 and fmt from env/static_libraries.sh.
execute_process(COMMAND ${CMAKE_SOURCE_DIR}/env/static_libraries.sh OUTPUT_VARIABLE libraries
  OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the static libraries are not there: see the lines above")
endif()
set(PATCHBENCH_STATIC_LIBRARIES ${libraries} CACHE INTERNAL "lib, include and notices of libgit2 and fmt")
# Two machines write the same program, without a word of where it was compiled; the linker leaves out what is never called.
target_compile_options(patchbench_warnings INTERFACE -ffunction-sections -fdata-sections -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
set(OPENSSL_USE_STATIC_LIBS ON)

add_library(patchbench_static_git2 STATIC IMPORTED)
set_target_properties(patchbench_static_git2 PROPERTIES IMPORTED_LOCATION ${libraries}/lib/libgit2.a
  INTERFACE_INCLUDE_DIRECTORIES ${libraries}/include)
find_library(PATCHBENCH_HTTP_PARSER http_parser REQUIRED)
find_library(PATCHBENCH_PCRE2 pcre2-8 REQUIRED)
find_package(ZLIB REQUIRED)
set_property(TARGET patchbench_static_git2 PROPERTY INTERFACE_LINK_LIBRARIES
  ${PATCHBENCH_HTTP_PARSER} ${PATCHBENCH_PCRE2} ZLIB::ZLIB)
add_library(patchbench_static_fmt STATIC IMPORTED)
set_target_properties(patchbench_static_fmt PROPERTIES IMPORTED_LOCATION ${libraries}/lib/libfmt.a)

# make_static(<program>...): links it without a shared library and leaves out what it never calls.
function(make_static)
  foreach(program ${ARGN})
    target_link_options(${program} PRIVATE -static -Wl,--gc-sections -Wl,--strip-all -Wl,--build-id=none)
  endforeach()
endfunction()
