# Programs that measure, bench/NAME.c -> bench_NAME. They are built with everything and run by hand.
file(GLOB CLEAVE_BENCHES CONFIGURE_DEPENDS bench/*.c)
foreach(source ${CLEAVE_BENCHES})
  get_filename_component(name ${source} NAME_WE)
  add_executable(bench_${name} ${source})
  target_link_libraries(bench_${name} PRIVATE cleave_core)
endforeach()
