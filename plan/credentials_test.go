package plan

import (
	"fmt"
	"testing"
)

func TestChangedCredentials(t *testing.T) {
	record := func(credentials, digest string) []byte {
		return fmt.Appendf(nil, `{"metadata":{"name":"a","namespace":"default"},"secrets":{"accessCredentials/0":%q},`+
			`"spec":{"runStrategy":"Always","template":{"spec":{"domain":{"devices":{}},"accessCredentials":[%s]}}}}`, digest, credentials)
	}
	const (
		agent   = `{"sshPublicKey":{"source":{"secret":{"secretName":"keys"}},"propagationMethod":{"qemuGuestAgent":{"users":["root"]}}}}`
		another = `{"userPassword":{"source":{"secret":{"secretName":"keys"}},"propagationMethod":{"qemuGuestAgent":{}}}}`
		cloud   = `{"sshPublicKey":{"source":{"secret":{"secretName":"keys"}},"propagationMethod":{"noCloud":{}}}}`
	)
	for _, test := range []struct {
		reason        string
		before, after []byte
		want          Consequence
	}{
		{"a new key reaches the running guest", record(agent, "1"), record(agent, "2"), ConsequenceLive},
		{"another credential as well", record(agent, "1"), record(agent+","+another, "1"), ConsequenceLive},
		{"cloud-init reads keys at the boot", record(cloud, "1"), record(cloud, "2"), ConsequenceRestart},
		{"from one way to the other", record(agent, "1"), record(cloud, "1"), ConsequenceRestart},
		{"both ways", record(agent+","+cloud, "1"), record(agent+","+cloud, "2"), ConsequenceRestart},
	} {
		t.Run(test.reason, func(t *testing.T) {
			changes, err := diffRecords(test.before, test.after, judge{})
			if err != nil || len(changes) != 1 {
				t.Fatalf("changes %+v, %v", changes, err)
			}
			if got := changes[0].Consequence; got != test.want {
				t.Errorf("%s is %s, want %s", changes[0].Path, got, test.want)
			}
			if changes[0].Path == "secrets[accessCredentials/0]" && (!changes[0].Sensitive || changes[0].After != nil) {
				t.Errorf("the digest is shown: %+v", changes[0])
			}
		})
	}
}
