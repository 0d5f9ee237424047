package schemas

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/intstr"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// checkCredentials checks how keys and passwords get into the guest.
func (c *checker) checkCredentials(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	for i := range spec.AccessCredentials {
		credential := &spec.AccessCredentials[i]
		in := func(parts ...any) []any { return c.in(append(at("accessCredentials", i), parts...)...) }
		switch {
		case credential.SSHPublicKey != nil && credential.UserPassword != nil:
			c.fail(in(), "an access credential is one of sshPublicKey and userPassword", "make two entries of it")
		case credential.SSHPublicKey == nil && credential.UserPassword == nil:
			c.fail(in(), "nothing to hand over", "add sshPublicKey or userPassword")
		}
		if ssh := credential.SSHPublicKey; ssh != nil {
			c.checkCredentialSource(ssh.Source.Secret, func(parts ...any) []any { return in(append(at("sshPublicKey", "source"), parts...)...) })
			c.checkPropagation(spec, &ssh.PropagationMethod, func(parts ...any) []any { return in(append(at("sshPublicKey", "propagationMethod"), parts...)...) })
		}
		if password := credential.UserPassword; password != nil {
			c.checkCredentialSource(password.Source.Secret, func(parts ...any) []any { return in(append(at("userPassword", "source"), parts...)...) })
			if password.PropagationMethod.QemuGuestAgent == nil {
				c.fail(in("userPassword", "propagationMethod"), "nothing says how the password gets into the guest", "write qemuGuestAgent: {}")
			}
		}
	}
}

func (c *checker) checkCredentialSource(secret *kubevirtv1.AccessCredentialSecretSource, in func(...any) []any) {
	switch {
	case secret == nil:
		c.fail(in(), "no source", "write secret: {secretName: NAME}")
	case secret.SecretName == "":
		c.fail(in("secret", "secretName"), "no name", "name the Secret")
	default:
		c.checkReference(func() []any { return in("secret", "secretName") }, "Secret", secret.SecretName)
	}
}

// checkPropagation wants exactly one way into the guest for a public key, and what that way needs.
func (c *checker) checkPropagation(spec *kubevirtv1.VirtualMachineInstanceSpec, method *kubevirtv1.SSHPublicKeyAccessCredentialPropagationMethod, in func(...any) []any) {
	methods := 0
	for _, set := range []bool{method.NoCloud != nil, method.ConfigDrive != nil, method.QemuGuestAgent != nil} {
		if set {
			methods++
		}
	}
	if methods != 1 {
		c.fail(in(), "exactly one of noCloud, configDrive and qemuGuestAgent says how the key gets into the guest", "keep one")
		return
	}
	noCloud, configDrive := false, false
	for i := range spec.Volumes {
		noCloud = noCloud || spec.Volumes[i].CloudInitNoCloud != nil
		configDrive = configDrive || spec.Volumes[i].CloudInitConfigDrive != nil
	}
	switch {
	case method.NoCloud != nil && !noCloud:
		c.fail(in("noCloud"), "no volume is cloudInitNoCloud, which would carry the key", "add such a volume")
	case method.ConfigDrive != nil && !configDrive:
		c.fail(in("configDrive"), "no volume is cloudInitConfigDrive, which would carry the key", "add such a volume")
	case method.QemuGuestAgent != nil:
		if len(method.QemuGuestAgent.Users) == 0 {
			c.fail(in("qemuGuestAgent", "users"), "nobody gets the key", "list the users")
		}
		for i, user := range method.QemuGuestAgent.Users {
			if user == "" {
				c.fail(in("qemuGuestAgent", "users", i), "the name is empty", "name the user")
			}
		}
	}
}

// checkProbeNumbers checks the numbers of a probe before the defaults take the place of those that are too small.
func (c *checker) checkProbeNumbers(name string, probe *kubevirtv1.Probe) {
	if probe == nil {
		return
	}
	for _, number := range []struct {
		name  string
		value int32
	}{
		{"initialDelaySeconds", probe.InitialDelaySeconds},
		{"timeoutSeconds", probe.TimeoutSeconds},
		{"periodSeconds", probe.PeriodSeconds},
		{"successThreshold", probe.SuccessThreshold},
		{"failureThreshold", probe.FailureThreshold},
	} {
		if number.value < 0 {
			c.fail(c.in(name, number.name), fmt.Sprintf("%d is negative", number.value), "use a number from 1 on")
		}
	}
}

// checkProbe checks livenessProbe or readinessProbe.
func (c *checker) checkProbe(spec *kubevirtv1.VirtualMachineInstanceSpec, name string, probe *kubevirtv1.Probe) {
	if probe == nil {
		return
	}
	in := func(parts ...any) []any { return c.in(append(at(name), parts...)...) }
	handlers := 0
	for _, set := range []bool{probe.HTTPGet != nil, probe.TCPSocket != nil, probe.Exec != nil, probe.GuestAgentPing != nil} {
		if set {
			handlers++
		}
	}
	if handlers != 1 {
		c.fail(in(), fmt.Sprintf("%d handlers, a probe has exactly one", handlers), "keep one of guestAgentPing, exec, httpGet and tcpSocket")
	}
	if name == "livenessProbe" && probe.SuccessThreshold > 1 {
		c.fail(in("successThreshold"), "one success shows that a machine is alive", "write 1, or leave it out")
	}
	if probe.Exec != nil && len(probe.Exec.Command) == 0 {
		c.fail(in("exec", "command"), "no command", "list the program in the guest and its arguments")
	}
	if probe.HTTPGet != nil {
		c.checkProbePort(spec, probe.HTTPGet.Port, probe.HTTPGet.Host, func(field string) []any { return in("httpGet", field) })
		oneOf(c, func() []any { return in("httpGet", "scheme") }, probe.HTTPGet.Scheme, "HTTP", "HTTPS")
		for i, header := range probe.HTTPGet.HTTPHeaders {
			if !isToken(header.Name) {
				c.fail(in("httpGet", "httpHeaders", i, "name"), quoteValue(header.Name)+" is not the name of a header", "write it as X-Name")
			}
		}
	}
	if probe.TCPSocket != nil {
		c.checkProbePort(spec, probe.TCPSocket.Port, probe.TCPSocket.Host, func(field string) []any { return in("tcpSocket", field) })
	}
}

// checkProbePort wants a port of the guest, by number or by the name that an interface gives it, and a pod network to
// reach it over unless the probe names a host.
func (c *checker) checkProbePort(spec *kubevirtv1.VirtualMachineInstanceSpec, port intstr.IntOrString, host string, in func(string) []any) {
	if port.Type == intstr.Int {
		if port.IntVal < 1 || port.IntVal > 65535 {
			c.fail(in("port"), fmt.Sprintf("%d is not a port", port.IntVal), "use a number from 1 to 65535")
		}
	} else {
		named := false
		for i := range spec.Domain.Devices.Interfaces {
			for _, one := range spec.Domain.Devices.Interfaces[i].Ports {
				named = named || one.Name == port.StrVal && port.StrVal != ""
			}
		}
		if !named {
			c.fail(in("port"), "no port of an interface is named "+quoteValue(port.StrVal), "use a number from 1 to 65535")
		}
	}
	if host != "" {
		return
	}
	for i := range spec.Networks {
		if spec.Networks[i].Pod != nil {
			return
		}
	}
	c.fail(in("port"), "the machine has no pod network over which the port could be reached", "use guestAgentPing or exec, or name a host")
}
