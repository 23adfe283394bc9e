# Read by CMake when llama.cpp's project begins: what computes nothing is compiled in half the time.
#
# Chat parsers, images and the server are two thirds of the compilation and no part of what is measured: several of
# their files share a translation unit, so that headers are read once, and -O1 comes after the build type's -O3. ggml,
# llama and the tools, which do the arithmetic, are compiled as they are.

function(quicken)
  set(common "${CMAKE_SOURCE_DIR}/common")
  set(mtmd "${CMAKE_SOURCE_DIR}/tools/mtmd")
  set_target_properties(llama-common mtmd PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  set_target_properties(server-context PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 4)
  # these specialize what others have used already, or refuse to see others' headers
  set_property(SOURCE "${common}/json.cpp" DIRECTORY "${common}" PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
  set_property(
    SOURCE "${mtmd}/mtmd-helper.cpp" "${mtmd}/mtmd-helper-gen.cpp" DIRECTORY "${mtmd}"
    PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
  foreach(target cpp-httplib llama-common mtmd server-context llama-server-impl)
    target_compile_options(${target} PRIVATE -O1)
  endforeach()
endfunction()

cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL quicken)
