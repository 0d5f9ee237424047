// Command kubevirt asks KubeVirt itself: it runs KubeVirt's own defaulting, admission and domain converter on manifests.
// The domain XML it writes is what gitvirt's is held against, its verdicts are what gitvirt's diagnostics are held
// against, and its speed is what `make bench` divides by.
//
// It is a module of its own, so that nothing of gitvirt depends on KubeVirt's programs. hack/kubevirt.sh builds and runs
// it.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"kubevirt.io/client-go/log"
)

const usage = `usage: kubevirt convert OUTDIR FILE...   write OUTDIR/FILE.xml and print KubeVirt's verdict of each machine
       kubevirt bench FILE...            print how long the conversion takes, from the object and from YAML

BLOCK=1 in the environment: claims are block devices.
`

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "kubevirt:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	log.Log.SetIOWriter(io.Discard) // KubeVirt tells of each disk that it looks at
	switch {
	case len(args) > 2 && args[0] == "convert":
		return convert(args[1], args[2:], os.Getenv("BLOCK") != "", stdout)
	case len(args) > 1 && args[0] == "bench":
		return bench(args[1:], stdout)
	}
	return fmt.Errorf("%s", usage)
}

func convert(out string, paths []string, block bool, stdout io.Writer) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	cluster := newCluster(block)
	machines, err := cluster.read(paths)
	if err != nil {
		return err
	}
	for _, machine := range machines {
		document, reasons := cluster.judge(machine)
		if document != "" {
			if err := os.WriteFile(filepath.Join(out, machine.name+".xml"), []byte(document+"\n"), 0o644); err != nil {
				return err
			}
		}
		verdict := "ok"
		if len(reasons) > 0 {
			verdict = "rejected: " + strings.ReplaceAll(strings.Join(reasons, " | "), "\n", " ")
		}
		if _, err := fmt.Fprintf(stdout, "%s\t%s\n", machine.name, verdict); err != nil {
			return err
		}
	}
	return nil
}
