# What scikit-build-core packs into the wheel `patchbench`, with the files that pyproject.toml names: the program, and the licences
# of what is linked into it.
make_static(patchbench)
if(NOT SKBUILD)
  return()
endif()
install(TARGETS patchbench RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR})

set(notices ${SKBUILD_METADATA_DIR}/licenses/third-party)
install(DIRECTORY ${PATCHBENCH_STATIC_LIBRARIES}/notices/ DESTINATION ${notices})
install(FILES ${CMAKE_SOURCE_DIR}/runner/python/NOTICE DESTINATION ${notices})
install_notices(${notices} libc6-dev libgcc-12-dev libssl-dev libsqlite3-dev libsqlitecpp-dev libvectorscan-dev libyaml-dev libevent-dev zlib1g-dev libpcre2-dev
  libhttp-parser-dev nlohmann-json3-dev libcli11-dev libkainjow-mustache-dev libvalijson-dev)
