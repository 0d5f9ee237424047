// Package deviceplugin offers devices of a node that many guests share (/dev/kvm, /dev/net/tun, /dev/vhost-net) to Pods, as resources
// that Pods ask for: the scheduler then knows which nodes have them, and the kubelet hands them to Pods without privileges
// (https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/). Devices that a guest has for itself
// are none of its business.
package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gitvirt/gitvirt/backoff"
)

// Domain is what the resources' names begin with, as apply/kubernetes/pods asks for them.
const Domain = "devices.gitvirt.io/"

// slots is how many Pods may have a device at a time: as many as a node can ever have, for none of them has it for itself.
const slots = 1000

// Device is a device node that many Pods may have at a time.
type Device struct {
	// Name is that of the resource, without the domain.
	Name string
	// Path is the device, on the node and in Pods.
	Path string
}

// Plugin offers devices to the Pods of a node.
type Plugin struct {
	// Dir is the kubelet's folder of device plugins.
	Dir     string
	Devices []Device
	Logger  *slog.Logger
	// Interval is how often it is looked whether the kubelet was restarted and whether the devices are there; 0 means 1 s.
	Interval time.Duration
}

// Run offers each device for as long as it is there, until ctx ends. A device that is absent is not offered; one that goes is told to be
// unhealthy, and Pods that have it keep it. A kubelet that was restarted is told anew.
func (p *Plugin) Run(ctx context.Context) {
	if p.Interval <= 0 {
		p.Interval = time.Second
	}
	var all sync.WaitGroup
	defer all.Wait()
	for _, device := range p.Devices {
		all.Go(func() { p.offer(ctx, device) })
	}
}

// lastPause bounds the wait after a kubelet that refused.
const lastPause = time.Minute

// offer offers one device until ctx ends.
func (p *Plugin) offer(ctx context.Context, device Device) {
	log := p.Logger.With("resource", Domain+device.Name)
	pause := p.Interval
	for {
		if device.present() {
			err := p.serve(ctx, device, log)
			switch {
			case ctx.Err() != nil:
				return
			case err == nil:
				pause = p.Interval // the kubelet was restarted
			default:
				log.Debug("the device is not offered", "error", err)
				pause = min(2*pause, lastPause)
			}
		}
		if backoff.Wait(ctx, nil, pause) != nil {
			return
		}
	}
}

// present tells whether the device is there. Whoever runs in a Pod is nobody on the node, so the device has to be open to all; what
// may be done with it, its cgroup says. udev does so on most nodes, and KubeVirt does it itself, too.
func (d Device) present() bool {
	info, err := os.Stat(d.Path)
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	if info.Mode().Perm()&0o006 != 0o006 {
		return os.Chmod(d.Path, info.Mode().Perm()|0o666) == nil
	}
	return true
}

// kubelet tells one run of the kubelet from the next: it makes its socket anew, and removes those of all plugins.
func (p *Plugin) kubelet() (string, error) {
	info, err := os.Stat(filepath.Join(p.Dir, kubeletSocket))
	if err != nil {
		return "", fmt.Errorf("looking for the kubelet: %w", err)
	}
	return fmt.Sprintf("%v %d", info.ModTime(), info.Size()), nil
}

const kubeletSocket = "kubelet.sock"

// serve offers a device to the kubelet that runs now; it returns nil when another one runs.
func (p *Plugin) serve(ctx context.Context, device Device, log *slog.Logger) error {
	kubelet, err := p.kubelet()
	if err != nil {
		return err
	}
	endpoint := "gitvirt-" + device.Name + ".sock"
	socket := filepath.Join(p.Dir, endpoint)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the socket of an agent that is gone: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	service := &service{device: device, ends: make(chan struct{}), interval: p.Interval}
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, service)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		close(service.ends)
		server.Stop()
		<-served
	}()
	if err := p.register(ctx, endpoint, device); err != nil {
		return err
	}
	log.Info("the kubelet offers the device to Pods", "device", device.Path)
	for backoff.Wait(ctx, nil, p.Interval) == nil {
		now, err := p.kubelet()
		if err != nil || now != kubelet {
			return err
		}
		if _, err := os.Stat(socket); err != nil {
			return nil // the kubelet removes it when it starts
		}
	}
	return nil
}

// registerLimit bounds the registration.
const registerLimit = 10 * time.Second

// register tells the kubelet of the device.
func (p *Plugin) register(ctx context.Context, endpoint string, device Device) error {
	ctx, cancel := context.WithTimeout(ctx, registerLimit)
	defer cancel()
	conn, err := grpc.NewClient("unix:"+filepath.Join(p.Dir, kubeletSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connecting to the kubelet: %w", err)
	}
	defer func() { _ = conn.Close() }()
	_, err = v1beta1.NewRegistrationClient(conn).Register(ctx, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: endpoint, ResourceName: Domain + device.Name,
	})
	if err != nil {
		return fmt.Errorf("telling the kubelet of the device: %w", err)
	}
	return nil
}

// service is what the kubelet asks.
type service struct {
	v1beta1.UnimplementedDevicePluginServer
	device   Device
	ends     chan struct{}
	interval time.Duration
}

// GetDevicePluginOptions says that nothing optional is wanted.
func (s *service) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

// ListAndWatch tells whether the device is there, now and whenever that changes.
func (s *service) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	tick := time.NewTicker(s.interval)
	defer tick.Stop()
	last := ""
	for {
		health := v1beta1.Unhealthy
		if s.device.present() {
			health = v1beta1.Healthy
		}
		if health != last {
			last = health
			devices := make([]*v1beta1.Device, slots)
			for i := range devices {
				devices[i] = &v1beta1.Device{ID: s.device.Name + strconv.Itoa(i), Health: health}
			}
			if err := stream.Send(&v1beta1.ListAndWatchResponse{Devices: devices}); err != nil {
				return err
			}
		}
		select {
		case <-s.ends:
			return nil
		case <-stream.Context().Done():
			return nil
		case <-tick.C:
		}
	}
}

// Allocate says what a container gets.
func (s *service) Allocate(_ context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	out := &v1beta1.AllocateResponse{}
	for range request.GetContainerRequests() {
		out.ContainerResponses = append(out.ContainerResponses, &v1beta1.ContainerAllocateResponse{
			Devices: []*v1beta1.DeviceSpec{{ContainerPath: s.device.Path, HostPath: s.device.Path, Permissions: "rw"}},
		})
	}
	return out, nil
}
