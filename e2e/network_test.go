//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serving is a manifest of a machine that serves a page on port 8080, with a Service for it on port 80.
func serving(name, binding string) string {
	web := machineNamed(name, "", `          disks: [{name: init, disk: {bus: virtio}}]
          interfaces: [{name: default, `+binding+`: {}}]
      networks: [{name: default, pod: {}}]
      volumes:
      - name: init
        cloudInitNoCloud:
          userData: |
            #!/bin/sh
            mkdir -p /run/page && echo "this is `+name+`" >/run/page/index.html && httpd -p 8080 -h /run/page
`)
	return strings.Replace(web, "          autoattachPodInterface: false\n", "", 1) + `---
apiVersion: v1
kind: Service
metadata: {name: ` + name + `, namespace: ` + storyNamespace + `}
spec:
  selector: {vm.kubevirt.io/name: ` + name + `}
  ports: [{port: 80, targetPort: 8080}]
`
}

// TestNetwork: a guest is reached from another Pod at the address of its Pod and through a Service of the repository, over masquerade and over
// bridge, and the status branch tells the address.
func TestNetwork(t *testing.T) {
	s := newStory(t)
	apply(t, &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "client", Namespace: storyNamespace},
		Spec: corev1.PodSpec{
			DNSPolicy: corev1.DNSDefault, TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{Name: "client", Image: "gitvirt.test/busybox:1", ImagePullPolicy: corev1.PullNever, Command: []string{"/bin/busybox", "sleep", "3600"}}},
		},
	})
	s.push("two bindings", serving("masq", "masquerade"), serving("bridged", "bridge"))
	for _, name := range []string{"masq", "bridged"} {
		found := s.ready(name)
		service := must(t, nil, "-n", storyNamespace, "get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
		for _, address := range []string{found.Status.PodIP + ":8080", service + ":80"} {
			eventually(t, fmt.Sprintf("%s answers at %s", name, address), func() (bool, string) {
				output, _ := kubectl(t, nil, "-n", storyNamespace, "exec", "client", "--", "/bin/busybox", "timeout", "3", "/bin/busybox", "wget", "-q", "-O-", "http://"+address+"/")
				return strings.Contains(output, "this is "+name), output
			})
		}
		eventually(t, "the status branch tells where it is reached", func() (bool, string) {
			text := s.status(name)
			return strings.Contains(text, found.Status.PodIP), text
		})
	}
}
