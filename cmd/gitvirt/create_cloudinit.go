package main

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"golang.org/x/crypto/bcrypt"
)

// cloudInitVolume is the name that virtctl gives the volume, too.
const cloudInitVolume = "cloudinitdisk"

// addCloudInit adds a volume with what the flags set up in the guest; none when they set up nothing.
func (b *vmBuilder) addCloudInit() error {
	field := map[string]string{"nocloud": "cloudInitNoCloud", "configdrive": "cloudInitConfigDrive", "none": ""}
	source := strings.ToLower(b.cloudInit)
	if _, known := field[source]; !known {
		return fmt.Errorf("--cloud-init is %q; want nocloud, configdrive or none", b.cloudInit)
	}
	user, err := b.userDataOf()
	if err != nil {
		return err
	}
	network, err := dataOf("network-data", b.networkData, b.networkDataFile)
	if err != nil {
		return err
	}
	if source == "none" {
		if user != "" || network != "" {
			return errors.New("--cloud-init none takes no user data, network data, user, password or key; leave out one or the other")
		}
		return nil
	}
	if user == "" && network == "" && len(b.access) == 0 {
		return nil
	}
	if user == "" {
		user = "#cloud-config\n{}\n"
	}
	if other, taken := b.named[cloudInitVolume]; taken {
		return fmt.Errorf("cloud-init needs a volume named %s, which is there from %s; name that otherwise", cloudInitVolume, other)
	}
	data := newMapping().set("userData", user).set("networkData", network)
	bus := "virtio"
	if b.preference != "" {
		bus = "sata"
	}
	at := fmt.Sprintf("spec.template.spec.volumes[%d].%s", len(b.volumes), field[source])
	b.addPair("--cloud-init", cloudInitVolume, newMapping().set("name", cloudInitVolume).set("disk", newMapping().set("bus", bus).flow()),
		newMapping().set("name", cloudInitVolume).set(field[source], data))
	b.from(at+".userData", "--cloud-init-user-data")
	b.from(at+".networkData", "--cloud-init-network-data")
	return nil
}

// userDataOf returns the user data that was given, or makes it of the flags for users and keys.
func (b *vmBuilder) userDataOf() (string, error) {
	config, err := b.cloudConfig()
	if err != nil {
		return "", err
	}
	given, err := dataOf("user-data", b.userData, b.userDataFile)
	if err != nil || given == "" {
		return config, err
	}
	if b.user != "" || b.passwordFile != "" || len(b.sshKeys) > 0 || b.manageSSH {
		return "", errors.New("--cloud-init-user-data says all; put --user, --password-file, --ssh-key and --ga-manage-ssh into it")
	}
	return given, nil
}

// dataOf returns what a flag holds as base64, or a file as it is. It is written as text: reviewers shall read it.
func dataOf(what, encoded, file string) (string, error) {
	switch {
	case encoded != "" && file != "":
		return "", fmt.Errorf("--cloud-init-%s and --cloud-init-%s-file exclude each other", what, what)
	case encoded != "":
		text, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || len(text) == 0 {
			return "", fmt.Errorf("--cloud-init-%s is not base64; encode it with base64 -w0, or name a file with --cloud-init-%s-file", what, what)
		}
		return string(text), nil
	case file != "":
		text, err := readSmall(file)
		if err != nil {
			return "", fmt.Errorf("--cloud-init-%s-file: %w", what, err)
		}
		if len(bytes.TrimSpace(text)) == 0 {
			return "", fmt.Errorf("--cloud-init-%s-file: %s is empty", what, file)
		}
		return string(text), nil
	}
	return "", nil
}

// readSmall reads a file of at most 1 MiB, which is what user data may have.
func readSmall(path string) ([]byte, error) {
	const limit = 1 << 20
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && len(text) > limit {
		err = fmt.Errorf("%s has more than 1 MiB", path)
	}
	return text, err
}

// userName is what useradd takes everywhere.
var userName = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)

// cloudConfig is the cloud-init configuration for a user with a password and keys; "" when there is none.
func (b *vmBuilder) cloudConfig() (string, error) {
	config := newMapping()
	if b.user != "" {
		if !userName.MatchString(b.user) {
			return "", fmt.Errorf("--user %q: want lower case letters, digits, dashes and underscores", b.user)
		}
		config.set("user", b.user)
	}
	if b.passwordFile != "" {
		hash, err := hashPassword(b.passwordFile)
		if err != nil {
			return "", fmt.Errorf("--password-file: %w", err)
		}
		config.set("password", hash).set("chpasswd", newMapping().set("expire", false).flow())
	}
	var keys []string
	for _, given := range b.sshKeys {
		key, err := publicKey(given)
		if err != nil {
			return "", fmt.Errorf("--ssh-key: %w", err)
		}
		keys = append(keys, key)
	}
	config.set("ssh_authorized_keys", keys)
	if b.manageSSH {
		config.set("runcmd", []string{"setsebool -P virt_qemu_ga_manage_ssh on"})
	}
	if len(config.Content) == 0 {
		return "", nil
	}
	text, err := config.encode()
	if err != nil {
		return "", err
	}
	return "#cloud-config\n" + string(text), nil
}

// hashPassword reads a password and returns a hash that the guest's crypt(3) takes; one that is a hash already stays.
func hashPassword(path string) (string, error) {
	text, err := readSmall(path)
	if err != nil {
		return "", err
	}
	password := strings.TrimRight(string(text), "\r\n")
	switch {
	case password == "":
		return "", fmt.Errorf("%s is empty", path)
	case strings.ContainsAny(password, "\r\n\x00"):
		return "", fmt.Errorf("%s has more than one line", path)
	case crypted.MatchString(password):
		return password, nil
	case len(password) > 72:
		return "", fmt.Errorf("the password in %s has %d bytes, at most 72 can be hashed; put a hash of openssl passwd -6 there", path, len(password))
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.DefaultCost)
	return string(hash), err
}

// crypted is what cloud-init takes for a hash.
var crypted = regexp.MustCompile(`^\$(1|2a|2y|5|6|y)(\$[^$]+){2,}$`)

// publicKey returns a key as it was given, or as the file that was named holds it.
func publicKey(given string) (string, error) {
	key := strings.TrimSpace(given)
	if !strings.Contains(key, " ") {
		text, err := readSmall(key)
		if err != nil {
			return "", fmt.Errorf("neither a public key nor a file with one: %w", err)
		}
		if bytes.Contains(text, []byte("PRIVATE KEY")) {
			return "", fmt.Errorf("%s is a private key; name the public one, %s.pub", given, given)
		}
		key = strings.TrimSpace(string(text))
	}
	kind, _, _ := strings.Cut(key, " ")
	known := strings.HasPrefix(kind, "ssh-") || strings.HasPrefix(kind, "ecdsa-sha2-") || strings.HasPrefix(kind, "sk-")
	if !known || strings.ContainsAny(key, "\r\n") {
		return "", errors.New("not one public key such as ssh-ed25519 AAAA... name@host")
	}
	return key, nil
}

// addCredentials adds what the guest gets from Secrets.
func (b *vmBuilder) addCredentials() error {
	for i, text := range b.credentials {
		p, err := parseParams("access-cred", text, "type", "src", "user", "method")
		if err != nil {
			return err
		}
		secret, err := p.local("src")
		if err != nil {
			return err
		}
		kind, err := p.oneOf("type", "ssh", "password")
		if err != nil {
			return err
		}
		source := newMapping().set("secret", newMapping().set("secretName", secret))
		b.from(fmt.Sprintf("spec.template.spec.accessCredentials[%d]", i), p.origin())
		b.from("spec.template.spec.accessCredentials", "--access-cred")
		if kind == "password" {
			if method, err := p.oneOf("method", "ga"); err != nil || p.get("user") != "" {
				return errors.Join(err, p.userRefused(kind, method))
			}
			b.access = append(b.access, newMapping().set("userPassword", newMapping().set("source", source).
				set("propagationMethod", newMapping().set("qemuGuestAgent", newMapping().flow()))))
			continue
		}
		method, err := b.sshMethod(p)
		if err != nil {
			return err
		}
		b.access = append(b.access, newMapping().set("sshPublicKey", newMapping().set("source", source).set("propagationMethod", method)))
	}
	return nil
}

func (p *params) userRefused(kind, method string) error {
	if p.get("user") == "" {
		return nil
	}
	return p.errorf("user is for type:ssh with method:ga, not for type:%s with method:%s", kind, method)
}

// sshMethod is how keys get into the guest. It sets what the method needs elsewhere, as virtctl does.
func (b *vmBuilder) sshMethod(p *params) (*mapping, error) {
	method, err := p.oneOf("method", "ga", "nocloud", "configdrive")
	if err != nil {
		return nil, err
	}
	if method == "ga" {
		user := p.get("user")
		if user == "" {
			user = b.user
		}
		if user == "" {
			return nil, p.errorf("user is missing; write user:NAME, or --user NAME")
		}
		b.manageSSH = b.manageSSH || b.userData == "" && b.userDataFile == "" && strings.ToLower(b.cloudInit) != "none"
		return newMapping().set("qemuGuestAgent", newMapping().set("users", []string{user})), nil
	}
	if err := p.userRefused("ssh", method); err != nil {
		return nil, err
	}
	if b.cloudInit != "nocloud" && !strings.EqualFold(b.cloudInit, method) {
		return nil, p.errorf("method is %s and --cloud-init is %s; they have to be the same", method, b.cloudInit)
	}
	b.cloudInit = method
	return newMapping().set(map[string]string{"nocloud": "noCloud", "configdrive": "configDrive"}[method], newMapping().flow()), nil
}
