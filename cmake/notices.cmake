# install_notices(<destination> <Debian package>...): the licences of what is linked in, as Debian states them, and the texts that
# those files only name.
function(install_notices destination)
  foreach(package ${ARGN})
    set(file /usr/share/doc/${package}/copyright)
    if(package STREQUAL libvalijson-dev AND NOT EXISTS ${file})
      set(file ${VALIJSON_INCLUDE}/../share/doc/${package}/copyright)
    endif()
    if(NOT EXISTS ${file})
      message(FATAL_ERROR "${file}: not there, and the wheel must carry it; install ${package} with its documentation")
    endif()
    install(FILES ${file} DESTINATION ${destination} RENAME ${package})
  endforeach()
  install(FILES /usr/share/common-licenses/GPL-2 /usr/share/common-licenses/GPL-3 /usr/share/common-licenses/LGPL-2.1
    /usr/share/common-licenses/Apache-2.0 DESTINATION ${destination})
endfunction()
