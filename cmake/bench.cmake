# Programs that measure: bench/NAME.c with its parts bench/NAME_*.c -> bench_NAME. They are built with everything and run
# by hand.
file(GLOB CLEAVE_BENCHES CONFIGURE_DEPENDS bench/*.c)
list(FILTER CLEAVE_BENCHES EXCLUDE REGEX "bench/[^/]*_[^/]*$")
foreach(source ${CLEAVE_BENCHES})
  get_filename_component(name ${source} NAME_WE)
  file(GLOB parts CONFIGURE_DEPENDS bench/${name}_*.c)
  add_executable(bench_${name} ${source} ${parts})
  target_include_directories(bench_${name} PRIVATE ${CBLAS_INCLUDE_DIR})
  target_link_libraries(bench_${name} PRIVATE cleave_core)
endforeach()
