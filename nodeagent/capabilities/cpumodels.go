package capabilities

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// cpuModelsLimit bounds how long QEMU may take to tell its CPU models.
const cpuModelsLimit = 20 * time.Second

// versioned are the names that QEMU has for one version of a model; libvirt and manifests have the model's.
var versioned = regexp.MustCompile(`-v[0-9]+$`) //nolint:gochecknoglobals // a constant

// CPUModels returns the names of the CPU models that guests of a domain type ("kvm", "qemu") can have on this host with all their features,
// sorted. It asks QEMU, which knows what the host's CPU and kernel, or its own emulation, have, over QMP
// (https://www.qemu.org/docs/master/interop/qemu-qmp-ref.html, query-cpu-definitions). qemu is the program.
func CPUModels(ctx context.Context, qemu, domainType string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, cpuModelsLimit)
	defer cancel()
	accelerator := "tcg"
	if domainType == "kvm" {
		accelerator = "kvm"
	}
	command := exec.CommandContext(ctx, qemu, "-machine", "none", "-accel", accelerator, "-nodefaults", "-no-user-config", "-display", "none", "-qmp", "stdio")
	command.Stdin = strings.NewReader(`{"execute":"qmp_capabilities"}{"execute":"query-cpu-definitions"}{"execute":"quit"}` + "\n")
	var said, complaint bytes.Buffer
	command.Stdout, command.Stderr = &said, &complaint
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("asking QEMU for its CPU models: %w: %s", err, strings.TrimSpace(complaint.String()))
	}
	return readCPUModels(said.Bytes())
}

// readCPUModels finds the answer among what QEMU says.
func readCPUModels(said []byte) ([]string, error) {
	answers := json.NewDecoder(bytes.NewReader(said))
	for answers.More() {
		var answer struct {
			Return json.RawMessage `json:"return"`
		}
		if err := answers.Decode(&answer); err != nil {
			return nil, fmt.Errorf("reading QEMU's CPU models: %w", err)
		}
		var models []struct {
			Name        string   `json:"name"`
			Unavailable []string `json:"unavailable-features"`
		}
		if len(answer.Return) == 0 || answer.Return[0] != '[' {
			continue
		}
		if err := json.Unmarshal(answer.Return, &models); err != nil {
			return nil, fmt.Errorf("reading QEMU's CPU models: %w", err)
		}
		var names []string
		for _, model := range models {
			// "base", "host" and "max" are other CPUs on each host.
			if len(model.Unavailable) == 0 && !versioned.MatchString(model.Name) && !slices.Contains([]string{"base", "host", "max"}, model.Name) {
				names = append(names, model.Name)
			}
		}
		slices.Sort(names)
		return names, nil
	}
	return nil, errors.New("QEMU tells no CPU models")
}
