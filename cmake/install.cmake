# How a build becomes a package: the library, its headers, find_package(engine CONFIG) and engine.pc.
# Included by the top level after the target `engine` is defined.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set_target_properties(engine PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
install(TARGETS engine EXPORT engine-targets
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/engine DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# What a program that uses the package has to find: a static library's own dependencies, a shared one's public ones.
get_target_property(engine_needs engine INTERFACE_LINK_LIBRARIES)
set(ENGINE_NEEDS_TBB FALSE)
set(ENGINE_NEEDS_THREADS FALSE)
if(engine_needs MATCHES "TBB::")
  set(ENGINE_NEEDS_TBB TRUE)
endif()
if(engine_needs MATCHES "Threads::")
  set(ENGINE_NEEDS_THREADS TRUE)
endif()

# A static library has the program itself link what the library uses; one in C lacks the C++ runtime as well.
get_target_property(engine_type engine TYPE)
string(COMPARE EQUAL "${engine_type}" "STATIC_LIBRARY" engine_is_static)
set(ENGINE_CXX_RUNTIME "")
if(engine_is_static)
  set(ENGINE_CXX_RUNTIME ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
  list(FILTER ENGINE_CXX_RUNTIME EXCLUDE REGEX "^(c|gcc|gcc_s)$")
endif()

set(engine_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/engine)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/engine-config.cmake.in
                              ${PROJECT_BINARY_DIR}/engine-config.cmake
                              INSTALL_DESTINATION ${engine_cmake_dir})
# Before 1.0 a minor version may change the C++ interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/engine-config-version.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT engine-targets NAMESPACE engine:: DESTINATION ${engine_cmake_dir})
install(FILES ${PROJECT_BINARY_DIR}/engine-config.cmake ${PROJECT_BINARY_DIR}/engine-config-version.cmake
        DESTINATION ${engine_cmake_dir})

# engine.pc finds its prefix from where it lies, so that an installed tree can be moved.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(ENGINE_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
  set(ENGINE_PC_LIBDIR ${CMAKE_INSTALL_FULL_LIBDIR})
  set(ENGINE_PC_INCLUDEDIR ${CMAKE_INSTALL_FULL_INCLUDEDIR})
else()
  file(RELATIVE_PATH engine_pc_up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" engine_pc_up "${engine_pc_up}")
  set(ENGINE_PC_PREFIX "\${pcfiledir}/${engine_pc_up}")
  set(ENGINE_PC_LIBDIR "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
  set(ENGINE_PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
if(engine_is_static)
  list(TRANSFORM ENGINE_CXX_RUNTIME PREPEND "-l" OUTPUT_VARIABLE engine_pc_runtime)
  list(JOIN engine_pc_runtime " " engine_pc_runtime)
  set(ENGINE_PC_REQUIRES "Requires: tbb")
  set(ENGINE_PC_LIBS "-L\${libdir} -lengine ${engine_pc_runtime} -pthread")
else()
  set(ENGINE_PC_REQUIRES "")
  set(ENGINE_PC_LIBS "-L\${libdir} -lengine")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/engine.pc.in ${PROJECT_BINARY_DIR}/engine.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/engine.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
