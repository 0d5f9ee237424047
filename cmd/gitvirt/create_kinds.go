package main

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"
)

const instancetypeAPI = "instancetype.kubevirt.io/v1beta1"

// sized are the flags of create instancetype.
type sized struct {
	name, namespace, memory, ioThreadsPolicy string
	namespaced                               bool
	cpu                                      uint32
	gpus, hostDevices                        []string
}

func (c *cli) createInstancetypeCommand() *cobra.Command {
	var f sized
	m := &manifest{}
	command := &cobra.Command{
		Use:   "instancetype --name NAME --cpu N --memory SIZE",
		Short: "Write the manifest of an instance type",
		Long: `Write the manifest of a VirtualMachineClusterInstancetype, or with --namespaced of a VirtualMachineInstancetype: the
size that machines refer to by name.

Exit codes: 0 done, 1 an error.`,
		Example: `  gitvirt create instancetype --name small --cpu 1 --memory 1Gi
  gitvirt create instancetype --name small --namespaced --namespace web --cpu 1 --memory 1Gi --output small.yaml`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := f.build(m); err != nil {
				return err
			}
			return c.write(m)
		},
	}
	flags := command.Flags()
	flags.StringVar(&f.name, "name", "", "name of the instance type")
	flags.BoolVar(&f.namespaced, "namespaced", false, "only for the machines of its namespace")
	flags.StringVarP(&f.namespace, "namespace", "n", "", "namespace, with --namespaced")
	flags.Uint32Var(&f.cpu, "cpu", 0, "number of virtual CPUs")
	flags.StringVar(&f.memory, "memory", "", "memory of the guest, such as 2Gi")
	flags.StringVar(&f.ioThreadsPolicy, "iothreadspolicy", "", "auto or shared")
	flags.StringArrayVar(&f.gpus, "gpu", nil, "GPU: name:NAME,devicename:RESOURCE; may be repeated")
	flags.StringArrayVar(&f.hostDevices, "hostdevice", nil, "host device: name:NAME,devicename:RESOURCE; may be repeated")
	m.addFlags(command)
	return command
}

func (f *sized) build(m *manifest) error {
	if err := m.begin(f.name, f.namespace, "Instancetype", f.namespaced); err != nil {
		return err
	}
	if f.cpu == 0 {
		return errors.New("--cpu is missing; write the number of virtual CPUs, such as --cpu 1")
	}
	if f.memory == "" {
		return errors.New("--memory is missing; write the size, such as --memory 1Gi")
	}
	spec := m.child("spec")
	spec.set("cpu", newMapping().set("guest", int64(f.cpu)))
	spec.set("memory", newMapping().set("guest", f.memory))
	spec.set("ioThreadsPolicy", f.ioThreadsPolicy)
	m.from("spec.cpu", "--cpu")
	m.from("spec.memory", "--memory")
	m.from("spec.ioThreadsPolicy", "--iothreadspolicy")
	for _, list := range []struct {
		flag, field string
		given       []string
	}{{"gpu", "gpus", f.gpus}, {"hostdevice", "hostDevices", f.hostDevices}} {
		var devices []*mapping
		for _, given := range list.given {
			p, err := parseParams(list.flag, given, "name", "devicename")
			if err != nil {
				return err
			}
			name, err := p.need("name", "name:NAME")
			if err != nil {
				return err
			}
			device, err := p.need("devicename", "devicename:RESOURCE")
			if err != nil {
				return err
			}
			devices = append(devices, newMapping().set("name", name).set("deviceName", device))
		}
		spec.set(list.field, devices)
		m.from("spec."+list.field, "--"+list.flag)
	}
	return nil
}

// preferred are the flags of create preference.
type preferred struct {
	name, namespace, topology, machine, storageClass string
	namespaced                                       bool
}

func (c *cli) createPreferenceCommand() *cobra.Command {
	var f preferred
	m := &manifest{}
	command := &cobra.Command{
		Use:   "preference --name NAME",
		Short: "Write the manifest of a preference",
		Long: `Write the manifest of a VirtualMachineClusterPreference, or with --namespaced of a VirtualMachinePreference: what
machines that refer to it get where their manifests say nothing.

Exit codes: 0 done, 1 an error.`,
		Example: `  gitvirt create preference --name linux --cpu-topology cores
  gitvirt create preference --name linux --machine-type q35 --output linux.yaml`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := m.begin(f.name, f.namespace, "Preference", f.namespaced); err != nil {
				return err
			}
			spec := m.child("spec")
			if f.topology != "" {
				spec.set("cpu", newMapping().set("preferredCPUTopology", f.topology))
			}
			if f.machine != "" {
				spec.set("machine", newMapping().set("preferredMachineType", f.machine))
			}
			if f.storageClass != "" {
				spec.set("volumes", newMapping().set("preferredStorageClassName", f.storageClass))
			}
			m.from("spec.cpu", "--cpu-topology")
			m.from("spec.machine", "--machine-type")
			m.from("spec.volumes", "--volume-storage-class")
			return c.write(m)
		},
	}
	flags := command.Flags()
	flags.StringVar(&f.name, "name", "", "name of the preference")
	flags.BoolVar(&f.namespaced, "namespaced", false, "only for the machines of its namespace")
	flags.StringVarP(&f.namespace, "namespace", "n", "", "namespace, with --namespaced")
	flags.StringVar(&f.topology, "cpu-topology", "", "what virtual CPUs are shown as: sockets, cores, threads, spread or any")
	flags.StringVar(&f.machine, "machine-type", "", "machine type, such as q35")
	flags.StringVar(&f.storageClass, "volume-storage-class", "", "storage class of volumes")
	m.addFlags(command)
	return command
}

// begin writes the head of an instance type or a preference.
func (m *manifest) begin(name, namespace, kind string, namespaced bool) error {
	m.mapping, m.origins = newMapping(), nil
	if name == "" {
		return errors.New("--name is missing; the manifest must mean the same object each time, so no name is invented")
	}
	scope := "Cluster"
	if namespaced {
		scope = ""
	} else if namespace != "" {
		return errors.New("--namespace is for --namespaced; without it the " + strings.ToLower(kind) + " is for all namespaces")
	}
	m.set("apiVersion", instancetypeAPI).set("kind", "VirtualMachine"+scope+kind)
	m.set("metadata", newMapping().set("name", name).set("namespace", namespace))
	m.from("metadata.name", "--name")
	m.from("metadata.namespace", "--namespace")
	return nil
}
