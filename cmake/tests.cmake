# Unit tests stand beside the code as NAME_test.c. A first line "/* nsize: 1 2 4 */" runs the test under mpirun with each
# of these numbers of ranks, one such test at a time; without it the test is one process. "label: full" in that line keeps
# it out of the short run. Tests of the whole program are the scripts in tests/.
set(CLEAVE_LAUNCH_VARIABLES OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1)
if(CLEAVE_SANITIZE) # Open MPI gives some memory back only by leaving
  list(APPEND CLEAVE_LAUNCH_VARIABLES ASAN_OPTIONS=detect_leaks=0)
endif()

function(cleave_test name label)
  add_test(NAME ${name} COMMAND ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 240 SKIP_RETURN_CODE 77 LABELS "${label}")
endfunction()

foreach(source ${CLEAVE_TESTS})
  file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR}/src ${source})
  string(REGEX REPLACE "_test\\.c$" "" name ${name})
  string(REPLACE "/" "." name ${name})
  add_executable(${name}_test ${source})
  target_link_libraries(${name}_test PRIVATE cleave_core PkgConfig::CMOCKA)
  target_compile_definitions(${name}_test PRIVATE CLEAVE_GOLDEN="${CMAKE_SOURCE_DIR}/tests/golden"
                             CLEAVE_SHARED="${CMAKE_SOURCE_DIR}/../shared")
  file(STRINGS ${source} first LIMIT_COUNT 1)
  set(label short)
  if(first MATCHES "label: ([a-z]+)")
    set(label ${CMAKE_MATCH_1})
  endif()
  if(first MATCHES "nsize: ([0-9 ]+)")
    separate_arguments(sizes UNIX_COMMAND "${CMAKE_MATCH_1}")
    foreach(n ${sizes})
      cleave_test(${name}.${n} ${label} ${MPIEXEC_EXECUTABLE} -n ${n} $<TARGET_FILE:${name}_test>)
      set_tests_properties(${name}.${n} PROPERTIES RESOURCE_LOCK mpi ENVIRONMENT "${CLEAVE_LAUNCH_VARIABLES}")
    endforeach()
  else()
    cleave_test(${name} ${label} ${name}_test)
  endif()
endforeach()

if(TARGET cleave)
  file(GLOB CLEAVE_SCRIPT_TESTS CONFIGURE_DEPENDS tests/*_test.sh)
  foreach(script ${CLEAVE_SCRIPT_TESTS})
    get_filename_component(name ${script} NAME)
    string(REGEX REPLACE "_test\\.sh$" "" name ${name})
    file(STRINGS ${script} second LIMIT_COUNT 2)
    set(label short)
    if(second MATCHES "label: ([a-z]+)")
      set(label ${CMAKE_MATCH_1})
    endif()
    cleave_test(program.${name} ${label} bash ${script} $<TARGET_FILE:cleave> ${MPIEXEC_EXECUTABLE})
    set_tests_properties(program.${name} PROPERTIES RESOURCE_LOCK mpi ENVIRONMENT "${CLEAVE_LAUNCH_VARIABLES}")
  endforeach()
endif()

cleave_test(rules short ${CMAKE_SOURCE_DIR}/scripts/rules $<TARGET_FILE:cleave_core>)
