package main

import (
	"fmt"
	"io"
	"testing"
)

// bench prints figures in the form of `go test -bench`, for the first machine of each file.
func bench(paths []string, stdout io.Writer) error {
	cluster := newCluster(false)
	for _, path := range paths {
		machines, err := cluster.read([]string{path})
		if err != nil {
			return err
		}
		if len(machines) == 0 {
			return fmt.Errorf("%s: no machine", path)
		}
		_, vmi, err := decode(machines[0])
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		cluster.admit(vmi)
		converted := testing.Benchmark(func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				if _, err := cluster.convert(vmi); err != nil {
					b.Fatal(err)
				}
			}
		})
		fromYAML := testing.Benchmark(func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				_, vmi, _ := decode(machines[0])
				cluster.admit(vmi)
				if _, err := cluster.convert(vmi); err != nil {
					b.Fatal(err)
				}
			}
		})
		fmt.Fprintf(stdout, "KubeVirt/Render/%s\t%s\t%s\n", machines[0].name, converted, converted.MemString())
		fmt.Fprintf(stdout, "KubeVirt/FromYAML/%s\t%s\t%s\n", machines[0].name, fromYAML, fromYAML.MemString())
	}
	return nil
}
