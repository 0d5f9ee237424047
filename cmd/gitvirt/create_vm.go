package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/schemas"
)

// vmFlags are the flags of create vm.
type vmFlags struct {
	name, namespace, runStrategy string
	gracePeriod                  int64
	graceGiven                   bool

	memory, instancetype, preference string
	cpus                             uint32

	containerDisks, claims, imports, hostDisks, emptyDisks, blanks []string
	sysprep                                                        string
	networks                                                       []string

	cloudInit, userData, userDataFile, networkData, networkDataFile string
	user, passwordFile                                              string
	sshKeys, credentials                                            []string
	manageSSH                                                       bool
}

// vmBuilder makes a machine of the flags, part by part.
type vmBuilder struct {
	*vmFlags
	*manifest
	volumes, disks, templates, interfaces, pods, access []*mapping

	named  map[string]string // volumes, with the flag they come from
	orders map[int64]string  // boot orders, likewise
}

func (c *cli) createVMCommand() *cobra.Command {
	var f vmFlags
	m := &manifest{}
	command := &cobra.Command{
		Use:   "vm --name NAME",
		Short: "Write the manifest of a VM",
		Long: `Write the manifest of a VirtualMachine from flags, in virtctl's syntax. What is written is checked as "gitvirt validate"
does; what it refers to (Secrets, claims, instance types) may lie in other files.

Volumes are written in this order, which is the boot order unless bootorder says otherwise: containerdisk, hostdisk, pvc,
import, blank, emptydisk. Passwords are read from a file and written as a hash.

Types and parameters of --volume-import; all have name, bootorder and size:
  http      url, secretref, extraheaders (several with ; between)
  registry  url, secretref, pullmethod
  pvc       src ([NAMESPACE/]NAME of the claim that is copied)
  blank

Exit codes: 0 done, 1 an error.`,
		Example: `  gitvirt create vm --name web-1 --volume-containerdisk src:quay.io/containerdisks/debian:12 --user admin --ssh-key ~/.ssh/id_ed25519.pub
  gitvirt create vm --name db-1 --cpus 2 --memory 4Gi --volume-hostdisk src:/srv/images/db-1.img --volume-emptydisk size:20Gi,name:data
  gitvirt create vm --name app-1 --instancetype small --preference linux --volume-import type:http,url:https://example.com/disk.qcow2,size:10Gi
  gitvirt create vm --name web-2 --volume-pvc src:web-2 --network type:bridge,src:lan --output vms/web-2.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.graceGiven = cmd.Flags().Changed("termination-grace-period")
			if err := refuseVirtctl(cmd); err != nil {
				return err
			}
			if err := f.build(m); err != nil {
				return err
			}
			return c.write(m)
		},
	}
	f.add(command)
	m.addFlags(command)
	return command
}

func (f *vmFlags) add(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&f.name, "name", "", "name of the VM")
	flags.StringVarP(&f.namespace, "namespace", "n", "", "namespace (default: default)")
	flags.StringVar(&f.runStrategy, "run-strategy", "Always", "Always, RerunOnFailure, Manual, Halted or Once")
	flags.Int64Var(&f.gracePeriod, "termination-grace-period", 30, "seconds that the guest has to shut down")
	flags.Uint32Var(&f.cpus, "cpus", 0, "number of virtual CPUs (default 1)")
	flags.StringVar(&f.memory, "memory", "", "memory of the guest, such as 2Gi (default 512Mi, unless an instance type says it)")
	flags.StringVar(&f.instancetype, "instancetype", "", "instance type: NAME, or KIND/NAME with virtualmachineinstancetype for one of the namespace")
	flags.StringVar(&f.preference, "preference", "", "preference: NAME, or KIND/NAME with virtualmachinepreference for one of the namespace")

	const repeat = "; may be repeated"
	flags.StringArrayVar(&f.containerDisks, "volume-containerdisk", nil, "container disk: src:IMAGE[,name:NAME][,bootorder:N]"+repeat)
	flags.StringArrayVar(&f.hostDisks, "volume-hostdisk", nil, "disk image on the host: src:/PATH[,size:SIZE][,name:NAME][,bootorder:N]; size makes a missing one"+repeat)
	flags.StringArrayVar(&f.claims, "volume-pvc", nil, "claim: src:NAME[,name:NAME][,bootorder:N]"+repeat)
	flags.StringArrayVar(&f.imports, "volume-import", nil, "new claim, filled from a source: type:TYPE,size:SIZE[,name:NAME][,bootorder:N],..."+repeat)
	flags.StringArrayVar(&f.blanks, "volume-blank", nil, "new empty claim: size:SIZE[,name:NAME][,bootorder:N]"+repeat)
	flags.StringArrayVar(&f.emptyDisks, "volume-emptydisk", nil, "empty disk of the VM's own: size:SIZE[,name:NAME][,bootorder:N]"+repeat)
	flags.StringVar(&f.sysprep, "volume-sysprep", "", "answer file for Windows: src:NAME[,type:configmap|secret]")
	flags.StringArrayVar(&f.networks, "network", nil, "interface: type:masquerade|bridge|sriov[,src:NETWORK][,name:NAME][,mac:MAC][,model:MODEL], or none (default type:masquerade)"+repeat)

	flags.StringVar(&f.cloudInit, "cloud-init", "nocloud", "data source of cloud-init: nocloud, configdrive or none")
	flags.StringVar(&f.userData, "cloud-init-user-data", "", "user data of cloud-init, base64")
	flags.StringVar(&f.userDataFile, "cloud-init-user-data-file", "", "file with the user data of cloud-init")
	flags.StringVar(&f.networkData, "cloud-init-network-data", "", "network data of cloud-init, base64")
	flags.StringVar(&f.networkDataFile, "cloud-init-network-data-file", "", "file with the network data of cloud-init")
	flags.StringVar(&f.user, "user", "", "user that cloud-init sets up")
	flags.StringVar(&f.passwordFile, "password-file", "", "file with the user's password, or a hash of it; a hash is written")
	flags.StringArrayVar(&f.sshKeys, "ssh-key", nil, "public key that may log in, or a file with one"+repeat)
	flags.BoolVar(&f.manageSSH, "ga-manage-ssh", false, "let the guest agent manage ssh keys (SELinux)")
	flags.StringArrayVar(&f.credentials, "access-cred", nil, "credentials in a Secret: type:ssh|password,src:SECRET[,user:USER][,method:ga|nocloud|configdrive]"+repeat)

	for flag, values := range map[string][]string{
		"run-strategy": runStrategies(), "cloud-init": {"nocloud", "configdrive", "none"},
	} { // registering fails only for a flag that does not exist
		_ = command.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	for _, hidden := range virtctlOnly() {
		flags.StringArray(hidden.flag, nil, hidden.instead)
		if hidden.flag == "infer-instancetype" || hidden.flag == "infer-preference" {
			flags.Lookup(hidden.flag).NoOptDefVal = "true" // a switch
		}
		_ = flags.MarkHidden(hidden.flag) // it fails only for a flag that does not exist
	}
	flags.Uint32Var(&f.cpus, "cpu", 0, "the same as --cpus")
	_ = flags.MarkHidden("cpu")
}

// virtctlOnly are the flags of virtctl that are refused by name.
func virtctlOnly() []struct{ flag, instead string } {
	const named = "a manifest must say itself what it asks for; name it with "
	return []struct{ flag, instead string }{
		{"infer-instancetype", named + "--instancetype"},
		{"infer-instancetype-from", named + "--instancetype"},
		{"infer-preference", named + "--preference"},
		{"infer-preference-from", named + "--preference"},
		{"volume-datasource", "use --volume-import type:http or type:registry with the source's URL"},
		{"volume-clone-pvc", "use --volume-import type:pvc"},
	}
}

func refuseVirtctl(command *cobra.Command) error {
	for _, refused := range virtctlOnly() {
		if command.Flags().Changed(refused.flag) {
			return fmt.Errorf("--%s is known to virtctl, not carried out by gitvirt; %s", refused.flag, refused.instead)
		}
	}
	return nil
}

// build writes the machine.
func (f *vmFlags) build(m *manifest) error {
	m.mapping, m.origins = newMapping(), nil
	b := &vmBuilder{vmFlags: f, manifest: m, named: map[string]string{}, orders: map[int64]string{}}
	if f.name == "" {
		return errors.New("--name is missing; the manifest must mean the same VM each time, so no name is invented")
	}
	if f.instancetype != "" && (f.memory != "" || f.cpus != 0) {
		return errors.New("--instancetype says CPUs and memory; leave out --cpus and --memory, or --instancetype")
	}
	for _, part := range []func() error{b.addVolumes, b.addNetworks, b.addCredentials, b.addCloudInit} {
		if err := part(); err != nil {
			return err
		}
	}
	m.set("apiVersion", schemas.APIVersionKubeVirt).set("kind", schemas.KindVirtualMachine)
	m.set("metadata", newMapping().set("name", f.name).set("namespace", f.namespace))
	m.from("metadata.name", "--name")
	m.from("metadata.namespace", "--namespace")
	spec := m.child("spec")
	spec.set("runStrategy", strategy(f.runStrategy))
	m.from("spec.runStrategy", "--run-strategy")
	for _, matcher := range []struct{ field, given string }{{"instancetype", f.instancetype}, {"preference", f.preference}} {
		if err := b.addMatcher(spec, matcher.field, matcher.given); err != nil {
			return err
		}
	}
	spec.set("dataVolumeTemplates", b.templates)
	b.addTemplate(spec.child("template").child("spec"))
	return nil
}

func runStrategies() []string {
	return []string{"Always", "RerunOnFailure", "Manual", "Halted", "Once"}
}

// strategy takes the run strategy in any case, as virtctl does.
func strategy(given string) string {
	for _, known := range runStrategies() {
		if strings.EqualFold(given, known) {
			return known
		}
	}
	return given // the check says what is wrong with it
}

// addMatcher refers to an instance type or a preference.
func (b *vmBuilder) addMatcher(spec *mapping, field, given string) error {
	if given == "" {
		return nil
	}
	suffix := map[string]string{"instancetype": "Instancetype", "preference": "Preference"}[field]
	kind, name, ok := strings.Cut(given, "/")
	if !ok {
		kind, name = "VirtualMachineCluster"+suffix, given
	}
	full := ""
	for _, known := range []string{"VirtualMachineCluster" + suffix, "VirtualMachine" + suffix} {
		if strings.EqualFold(kind, known) {
			full = known
		}
	}
	if full == "" || name == "" {
		return fmt.Errorf("--%s %s: want NAME, virtualmachinecluster%s/NAME or virtualmachine%s/NAME", field, given, field, field)
	}
	spec.set(field, newMapping().set("kind", full).set("name", name))
	b.from("spec."+field, "--"+field+" "+given)
	return nil
}

// addTemplate writes the machine itself.
func (b *vmBuilder) addTemplate(spec *mapping) {
	const at = "spec.template.spec."
	if b.graceGiven {
		spec.set("terminationGracePeriodSeconds", b.gracePeriod)
		b.from(at+"terminationGracePeriodSeconds", "--termination-grace-period")
	}
	domain := spec.child("domain")
	if b.cpus != 0 {
		domain.set("cpu", newMapping().set("cores", int64(b.cpus)))
		b.from(at+"domain.cpu", "--cpus")
	}
	if b.instancetype == "" {
		memory := b.memory
		if memory == "" {
			memory = "512Mi"
		}
		domain.set("memory", newMapping().set("guest", memory))
		b.from(at+"domain.memory", "--memory")
	}
	devices := newMapping()
	devices.set("disks", b.disks)
	if len(b.disks) > 0 && b.preference == "" {
		devices.comment("virtio needs drivers in the guest, which Windows does not bring; sata works everywhere")
	}
	if len(b.interfaces) > 0 {
		devices.set("interfaces", b.interfaces)
	} else {
		devices.set("autoattachPodInterface", false)
	}
	domain.set("devices", devices)
	spec.set("networks", b.pods)
	spec.set("volumes", b.volumes)
	spec.set("accessCredentials", b.access)
}

// addNetworks makes the interfaces and what they are connected to.
func (b *vmBuilder) addNetworks() error {
	given := b.networks
	if len(given) == 0 {
		given = []string{"type:masquerade"}
	}
	for i, text := range given {
		if text == "none" && len(given) == 1 {
			return nil
		}
		p, err := parseParams("network", text, "type", "src", "name", "mac", "model")
		if err != nil {
			return err
		}
		binding, err := p.oneOf("type", "masquerade", "bridge", "sriov")
		if err != nil {
			return err
		}
		name := p.get("name")
		if name == "" {
			name = "default"
			if i > 0 {
				name = fmt.Sprintf("net-%d", i+1)
			}
		}
		source := p.get("src")
		switch {
		case source == "" && binding == "sriov":
			return p.errorf("src is missing; write src:NETWORK")
		case source != "" && binding == "masquerade":
			return p.errorf("masquerade is not connected to a network; leave out src, or use type:bridge")
		}
		network := newMapping().set("name", name)
		if source == "" {
			network.set("pod", newMapping().flow())
		} else {
			network.set("multus", newMapping().set("networkName", source))
		}
		b.interfaces = append(b.interfaces, newMapping().set("name", name).set(binding, newMapping().flow()).
			set("macAddress", p.get("mac")).set("model", p.get("model")))
		b.pods = append(b.pods, network)
		b.from(fmt.Sprintf("spec.template.spec.domain.devices.interfaces[%d]", i), p.origin())
		b.from(fmt.Sprintf("spec.template.spec.networks[%d]", i), p.origin())
	}
	return nil
}
