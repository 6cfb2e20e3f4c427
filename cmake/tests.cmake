# Unit tests stand beside the code as NAME_test.c. A first line "/* nsize: 1 2 4 */" runs the test under mpirun with each
# of these numbers of ranks; without it the test is one process. "label: full" in that line keeps it out of the short run.
set(CLEAVE_MPIRUN ${CMAKE_COMMAND} -E env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1
    ${MPIEXEC_EXECUTABLE})

foreach(source ${CLEAVE_TESTS})
  file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR}/src ${source})
  string(REGEX REPLACE "_test\\.c$" "" name ${name})
  string(REPLACE "/" "." name ${name})
  add_executable(${name}_test ${source})
  target_link_libraries(${name}_test PRIVATE cleave_core PkgConfig::CMOCKA)
  target_compile_definitions(${name}_test PRIVATE CLEAVE_GOLDEN="${CMAKE_SOURCE_DIR}/tests/golden"
                             CLEAVE_SHARED="${CMAKE_SOURCE_DIR}/../shared")
  file(STRINGS ${source} first LIMIT_COUNT 1)
  if(first MATCHES "nsize: ([0-9 ]+)")
    separate_arguments(sizes UNIX_COMMAND "${CMAKE_MATCH_1}")
    foreach(n ${sizes})
      add_test(NAME ${name}.${n} COMMAND ${CLEAVE_MPIRUN} -n ${n} $<TARGET_FILE:${name}_test>)
      set_tests_properties(${name}.${n} PROPERTIES TIMEOUT 240)
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${name}_test)
    set_tests_properties(${name} PROPERTIES TIMEOUT 240 SKIP_RETURN_CODE 77)
  endif()
endforeach()
