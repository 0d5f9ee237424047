package nodeagent

// settings are what the options of New set.
type settings struct {
	redirects          Redirects
	insecureRegistries []string
	hostDiskRoots      []string
	reservedCPUs       string
	hostRoot           string
	localImports       bool
}

// Option adjusts an Agent.
type Option func(*settings)

// WithInsecureRegistries names registries (host:port) that may be spoken to without TLS; loopback always may.
func WithInsecureRegistries(hosts ...string) Option {
	return func(s *settings) { s.insecureRegistries = append(s.insecureRegistries, hosts...) }
}

// WithHostDiskRoots names the folders below which hostDisk files may lie, and directories of the host that guests share; none means
// files anywhere, and no directories.
func WithHostDiskRoots(roots ...string) Option {
	return func(s *settings) { s.hostDiskRoots = append(s.hostDiskRoots, roots...) }
}

// WithLocalImports lets imports fetch from loopback and link-local addresses, where services of the host listen.
func WithLocalImports(allow bool) Option {
	return func(s *settings) { s.localImports = allow }
}

// WithReservedCPUs names CPUs of the host, such as "0-1", that no VM has for itself; without it the first core stays with
// the host.
func WithReservedCPUs(list string) Option {
	return func(s *settings) { s.reservedCPUs = list }
}

// WithHostRoot names the folder in which the file system of the host begins that devices, CPUs and programs are looked
// for in; without it "/".
func WithHostRoot(dir string) Option {
	return func(s *settings) { s.hostRoot = dir }
}

// WithRedirects replaces the redirects, which are a table of the kernel's nftables.
func WithRedirects(redirects Redirects) Option {
	return func(s *settings) { s.redirects = redirects }
}
