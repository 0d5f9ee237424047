package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"pgregory.net/rapid"
)

var noon = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func newAuthority(t *testing.T) *Authority {
	t.Helper()
	a, err := NewAuthority(noon)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// nodeTemplate is what the agent of the node asks for.
func nodeTemplate(node string) *x509.CertificateRequest {
	return &x509.CertificateRequest{Subject: pkix.Name{CommonName: nodePrefix + node}, DNSNames: []string{node + nodeDomain}}
}

// written makes a request of a template, with a key of its own unless one is given.
func written(t *testing.T, template *x509.CertificateRequest, key any) []byte {
	t.Helper()
	if key == nil {
		made, err := NewKey()
		if err != nil {
			t.Fatal(err)
		}
		key = made.private
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return encode(pemRequest, der)
}

func nodeRequest(t *testing.T) *certificatesv1.CertificateSigningRequest {
	return &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		SignerName: NodeSigner, Username: "system:serviceaccount:gitvirt-system:gitvirt-agent",
		Groups: []string{"system:serviceaccounts", "system:authenticated"},
		Extra: map[string]certificatesv1.ExtraValue{
			nodeNameExtra: {"node-1"}, "authentication.kubernetes.io/pod-name": {"gitvirt-agent-x"},
		},
		Usages: Usages(Node), Request: written(t, nodeTemplate("node-1"), nil),
	}}
}

func userRequest(t *testing.T) *certificatesv1.CertificateSigningRequest {
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	asked, err := key.Request(Peer{Role: User, Name: "alice@example.com", Groups: []string{"ops", "system:authenticated"}})
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		SignerName: ClientSigner, Username: "alice@example.com", Groups: []string{"system:authenticated", "ops"}, Usages: Usages(User), Request: asked,
	}}
}

func TestCheckGrants(t *testing.T) {
	seconds := int32(600)
	short := nodeRequest(t)
	short.Spec.ExpirationSeconds = &seconds
	numbers := nodeRequest(t)
	numbers.Spec.Extra[nodeNameExtra] = []string{"10.0.0.7"}
	numbers.Spec.Request = written(t, nodeTemplate("10.0.0.7"), nil)
	for reason, c := range map[string]struct {
		request *certificatesv1.CertificateSigningRequest
		peer    Peer
		life    time.Duration
	}{
		"an agent":                           {nodeRequest(t), Peer{Role: Node, Name: "node-1"}, nodeLife},
		"an agent that wants it for shorter": {short, Peer{Role: Node, Name: "node-1"}, 10 * time.Minute},
		"a node that looks like an address":  {numbers, Peer{Role: Node, Name: "10.0.0.7"}, nodeLife},
		"somebody":                           {userRequest(t), Peer{Role: User, Name: "alice@example.com", Groups: []string{"ops", "system:authenticated"}}, clientLife},
	} {
		grant, err := Check(c.request, "gitvirt-system")
		if err != nil || !reflect.DeepEqual(grant.Peer, c.peer) || grant.life != c.life {
			t.Errorf("%s: %+v, %v", reason, grant, err)
			continue
		}
		text, err := newAuthority(t).Issue(grant, noon)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if peer, err := PeerOf(certificate); err != nil || !reflect.DeepEqual(peer, c.peer) {
			t.Errorf("%s: the certificate is of %+v, %v", reason, peer, err)
		}
		if life := certificate.NotAfter.Sub(noon); life != c.life || certificate.IsCA {
			t.Errorf("%s: it lives for %s, as an authority: %t", reason, life, certificate.IsCA)
		}
	}
}

func TestCheckRefuses(t *testing.T) {
	weak, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	old, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	// asks changes what a request of an agent says.
	asks := func(change func(*x509.CertificateRequest)) func(*certificatesv1.CertificateSigningRequestSpec) {
		return func(spec *certificatesv1.CertificateSigningRequestSpec) {
			template := nodeTemplate("node-1")
			change(template)
			spec.Request = written(t, template, nil)
		}
	}
	type spec = certificatesv1.CertificateSigningRequestSpec
	for reason, c := range map[string]struct {
		from   func(*testing.T) *certificatesv1.CertificateSigningRequest
		change func(*spec)
		want   string
	}{
		"another signer":                {nodeRequest, func(s *spec) { s.SignerName = "kubernetes.io/kube-apiserver-client" }, "no signer of gitvirt's"},
		"another account":               {nodeRequest, func(s *spec) { s.Username = "system:serviceaccount:gitvirt-system:default" }, "only"},
		"an agent of another namespace": {nodeRequest, func(s *spec) { s.Username = "system:serviceaccount:team-a:gitvirt-agent" }, "only"},
		"an administrator":              {nodeRequest, func(s *spec) { s.Username = "kubernetes-admin" }, "only"},
		"a token of no node":            {nodeRequest, func(s *spec) { delete(s.Extra, nodeNameExtra) }, "bound to 0 nodes"},
		"a token of two nodes":          {nodeRequest, func(s *spec) { s.Extra[nodeNameExtra] = []string{"node-1", "node-2"} }, "bound to 2 nodes"},
		"a node that cannot be":         {nodeRequest, func(s *spec) { s.Extra[nodeNameExtra] = []string{"Node 1"} }, "the node"},
		"the token of another node":     {nodeRequest, func(s *spec) { s.Extra[nodeNameExtra] = []string{"node-2"} }, `and is "gitvirt:node:node-2"`},
		"another node":                  {nodeRequest, asks(func(r *x509.CertificateRequest) { *r = *nodeTemplate("node-2") }), `asks to be "gitvirt:node:node-2"`},
		"the controller":                {nodeRequest, asks(func(r *x509.CertificateRequest) { r.Subject.CommonName = controllerName }), "asks to be"},
		"the name of another node":      {nodeRequest, asks(func(r *x509.CertificateRequest) { r.DNSNames[0] = "node-2" + nodeDomain }), "asks for the names"},
		"one more name":                 {nodeRequest, asks(func(r *x509.CertificateRequest) { r.DNSNames = append(r.DNSNames, "localhost") }), "asks for the names"},
		"no name":                       {nodeRequest, asks(func(r *x509.CertificateRequest) { r.DNSNames = nil }), "asks for the names"},
		"an address":                    {nodeRequest, asks(func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} }), "addresses"},
		"a mail address":                {nodeRequest, asks(func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"root@localhost"} }), "addresses"},
		"a URI":                         {nodeRequest, asks(func(r *x509.CertificateRequest) { r.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}} }), "addresses"},
		"an organization":               {nodeRequest, asks(func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:masters"} }), "group"},
		"more of a subject":             {nodeRequest, asks(func(r *x509.CertificateRequest) { r.Subject.Country = []string{"DE"} }), "more than"},
		"to be an authority": {nodeRequest, asks(func(r *x509.CertificateRequest) {
			r.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Value: []byte{0x30, 3, 1, 1, 0xff}}}
		}), "the extension 2.5.29.19"},
		"to be a client":         {nodeRequest, func(s *spec) { s.Usages = Usages(User) }, "usages"},
		"to be a client as well": {nodeRequest, func(s *spec) { s.Usages = append(Usages(Node), certificatesv1.UsageClientAuth) }, "usages"},
		"no usage":               {nodeRequest, func(s *spec) { s.Usages = nil }, "usages"},
		"a weak key":             {nodeRequest, func(s *spec) { s.Request = written(t, nodeTemplate("node-1"), weak) }, "want a key"},
		"an RSA key":             {nodeRequest, func(s *spec) { s.Request = written(t, nodeTemplate("node-1"), old) }, "want a key"},
		"no PEM":                 {nodeRequest, func(s *spec) { s.Request = []byte("hello") }, "PEM"},
		"two requests":           {nodeRequest, func(s *spec) { s.Request = append(s.Request, s.Request...) }, "PEM"},
		"broken bytes":           {nodeRequest, func(s *spec) { s.Request = encode(pemRequest, []byte{1, 2}) }, "reading the request"},
		"somebody else's key": {nodeRequest, func(s *spec) {
			block, _ := pem.Decode(s.Request)
			block.Bytes[len(block.Bytes)-1] ^= 1
			s.Request = pem.EncodeToMemory(block)
		}, "does not have the key"},

		"nobody":                    {userRequest, func(s *spec) { s.Username = "" }, "nobody asks"},
		"another user":              {userRequest, func(s *spec) { s.Username = "bob" }, `and is "gitvirt:user:bob"`},
		"a group that they lack":    {userRequest, func(s *spec) { s.Groups = []string{"ops"} }, `the group "system:authenticated"`},
		"a group that is left out":  {userRequest, func(s *spec) { s.Groups = append(s.Groups, "interns") }, "leaves out"},
		"somebody who is an agent":  {userRequest, func(s *spec) { s.Request = written(t, nodeTemplate("node-1"), nil) }, "asks to be"},
		"somebody who is to serve":  {userRequest, func(s *spec) { s.Usages = Usages(Node) }, "usages"},
		"somebody who is a machine": {userRequest, func(s *spec) { s.SignerName = NodeSigner }, "only"},
	} {
		request := c.from(t)
		c.change(&request.Spec)
		if _, err := Check(request, "gitvirt-system"); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", reason, err, c.want)
		}
	}
}

// Whatever an agent's request says, the certificate is of the node of its token or there is none.
func TestNobodyGetsAnothersCertificate(t *testing.T) {
	node := rapid.SampledFrom([]string{"node-1", "node-2", "node-1.example.com", ""})
	rapid.Check(t, func(r *rapid.T) {
		request := nodeRequest(t)
		bound, asked, named := node.Draw(r, "bound"), node.Draw(r, "asked"), node.Draw(r, "named")
		request.Spec.Extra[nodeNameExtra] = []string{bound}
		request.Spec.Request = written(t, &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: nodePrefix + asked}, DNSNames: []string{named + nodeDomain},
		}, nil)
		grant, err := Check(request, "gitvirt-system")
		if allowed := bound != "" && bound == asked && asked == named; (err == nil) != allowed || (allowed && grant.Peer.Name != bound) {
			r.Fatalf("bound to %q, asks %q with the name %q: %+v, %v", bound, asked, named, grant, err)
		}
	})
}

func TestPeerOf(t *testing.T) {
	for name, want := range map[string]bool{
		"gitvirt:controller": true, "gitvirt:user:gitvirt:controller": true, "gitvirt:user:": false, "gitvirt:node:node-1": false, "admin": false, "": false,
	} {
		peer, err := PeerOf(&x509.Certificate{Subject: pkix.Name{CommonName: name}})
		if (err == nil) != want || (err != nil && !errors.Is(err, ErrRefused)) {
			t.Errorf("%q: %+v, %v", name, peer, err)
		}
		if err == nil && peer.Role == Controller && name != "gitvirt:controller" {
			t.Errorf("%q is taken for the controller", name)
		}
	}
}

func TestAuthorityIsKept(t *testing.T) {
	a := newAuthority(t)
	keys, err := a.Keys()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseAuthority(keys)
	if err != nil {
		t.Fatal(err)
	}
	was, err := a.Trust()
	if err != nil {
		t.Fatal(err)
	}
	is, err := again.Trust()
	if err != nil || !bytes.Equal(was.Certificates(), is.Certificates()) || !bytes.Equal(was.StepKeys(), is.StepKeys()) {
		t.Errorf("the authority is another: %v", err)
	}
	for _, text := range [][]byte{is.Certificates(), is.StepKeys()} {
		if bytes.Contains(text, []byte("PRIVATE")) {
			t.Error("a private key is in what everybody reads")
		}
	}
	other, err := newAuthority(t).Keys()
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := a.IssueController(noon)
	if err != nil {
		t.Fatal(err)
	}
	for reason, broken := range map[string]Keys{
		"nothing":                  {},
		"another's key":            {keys.Certificate, other.Key, keys.StepKey},
		"no authority":             {encode(pemCertificate, certificate.Certificate[0]), keys.Key, keys.StepKey},
		"no key of steps":          {keys.Certificate, keys.Key, nil},
		"a key of steps of ECDSA":  {keys.Certificate, keys.Key, keys.Key},
		"a key of steps of no use": {keys.Certificate, keys.Key, encode(pemPrivateKey, []byte{1})},
	} {
		if _, err := ParseAuthority(broken); err == nil {
			t.Errorf("%s: no error", reason)
		}
	}
	for reason, broken := range map[string][2][]byte{
		"nothing":                     {},
		"no certificate":              {nil, is.StepKeys()},
		"no key of steps":             {is.Certificates(), nil},
		"a certificate of no use":     {encode(pemCertificate, []byte{1}), is.StepKeys()},
		"certificates that are keys":  {is.StepKeys(), is.StepKeys()},
		"a certificate of no CA":      {encode(pemCertificate, certificate.Certificate[0]), is.StepKeys()},
		"a key of steps of no use":    {is.Certificates(), encode(pemPublicKey, []byte{1})},
		"something after certificate": {append(is.Certificates(), "x"...), is.StepKeys()},
	} {
		if _, err := ParseTrust(broken[0], broken[1]); err == nil {
			t.Errorf("%s: no error", reason)
		}
	}
}

func TestStepsAreSigned(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	trust, err := a.Trust()
	if err != nil {
		t.Fatal(err)
	}
	others, err := other.Trust()
	if err != nil {
		t.Fatal(err)
	}
	// While one authority follows another, both are trusted.
	both, err := ParseTrust(append(trust.Certificates(), others.Certificates()...), append(trust.StepKeys(), others.StepKeys()...))
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(r *rapid.T) {
		payload := rapid.SliceOf(rapid.Byte()).Draw(r, "payload")
		signature, err := a.SignStep(payload)
		if err != nil {
			r.Fatal(err)
		}
		for _, good := range []*Trust{trust, both} {
			if err := good.VerifyStep(payload, signature); err != nil {
				r.Fatal(err)
			}
		}
		if err := others.VerifyStep(payload, signature); !errors.Is(err, ErrRefused) {
			r.Fatalf("another authority's: %v", err)
		}
		if err := trust.VerifyStep(append(payload, 0), signature); !errors.Is(err, ErrRefused) {
			r.Fatalf("another step: %v", err)
		}
		at := rapid.IntRange(0, len(signature)-1).Draw(r, "at")
		signature[at] ^= 1
		if err := trust.VerifyStep(payload, signature); !errors.Is(err, ErrRefused) {
			r.Fatalf("another signature: %v", err)
		}
		if err := trust.VerifyStep(payload, nil); !errors.Is(err, ErrRefused) {
			r.Fatalf("no signature: %v", err)
		}
	})
}

func TestControllerGivesItselfAnotherCertificateInTime(t *testing.T) {
	now := noon
	source, err := NewControllerSource(newAuthority(t), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	serial := func() string {
		certificate, err := source.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		return certificate.Leaf.SerialNumber.String()
	}
	first := serial()
	now = noon.Add(controllerLife / 2)
	if serial() != first {
		t.Error("a certificate that will do is made anew")
	}
	now = noon.Add(controllerLife * 3 / 4)
	if serial() == first {
		t.Error("a certificate is not made anew in time")
	}
}
