package nodeagent_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
)

// TestUnreadableTrace: a domain that is gone, and whose trace cannot be read, is told with that, and nobody touches it until somebody
// has mended or removed the trace. While the domain is there its trace does not matter.
func TestUnreadableTrace(t *testing.T) {
	for what, spoil := range map[string]func(path string) error{
		"cut off": func(path string) error { return os.WriteFile(path, []byte("<gitvirt:vm"), 0o600) },
		"empty":   func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"no file": func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
	} {
		for _, restarted := range []bool{false, true} {
			name := what
			if restarted {
				name += ", restarted"
			}
			t.Run(name, func(t *testing.T) {
				r := newRig(t, nil)
				in := vm{name: "a", change: func(*kubevirtv1.VirtualMachineInstanceSpec) {}}
				r.must(r.request(in, ""))
				path := filepath.Join(r.dir, "state", "vms", "default", "a", "record.xml")
				good, err := os.ReadFile(path)
				if err == nil {
					err = spoil(path)
				}
				if err != nil {
					t.Fatal(err)
				}
				if restarted {
					r.stop()
					r.begin()
				}
				r.eventually("a", "as it is", func(d *api.Domain) bool { return d.GetProblem() == "" })
				if err := r.fake.Undefine(context.Background(), "default_a"); err != nil {
					t.Fatal(err)
				}
				r.eventually("a", "told with its trace", func(d *api.Domain) bool {
					return strings.Contains(d.GetProblem(), path) && d.GetAddress() == "VirtualMachine/default/a"
				})
				request := r.request(in, "")
				if err := r.execute(request); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "trace") {
					t.Errorf("got %v", err)
				}
				request.Define, request.Vm, request.Destroy = false, nil, true
				if err := r.execute(request); status.Code(err) != codes.InvalidArgument {
					t.Errorf("destroying: %v", err)
				}
				if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, good, 0o600)); err != nil {
					t.Fatal(err)
				}
				r.eventually("a", "missing", func(d *api.Domain) bool { return d.GetState() == "missing" && d.GetProblem() == "" })
				r.must(r.request(in, ""))
			})
		}
	}
}
