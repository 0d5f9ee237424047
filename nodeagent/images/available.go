package images

import (
	"context"
	"errors"
	"fmt"
)

// Available reports whether a container image could be used now, and how many bytes would have to be fetched for it: 0 when the
// cache holds all of it. Its source is asked once, for the manifest only; nothing is fetched. paths are files in the image;
// none stands for its disk.
func (c *Cache) Available(ctx context.Context, ref string, opts GetOptions, paths ...string) (fetch int64, err error) {
	wants := []wanted{{path: opts.Path, disk: true}}
	if len(paths) > 0 {
		wants = nil
	}
	for _, path := range append(paths, opts.Path) {
		if path == "" {
			continue
		}
		inner, err := cleanInnerPath(path)
		if err != nil {
			return 0, fmt.Errorf("container image %s: %w", ref, err)
		}
		if path == opts.Path && len(paths) == 0 {
			wants[0].path = inner
		} else {
			wants = append(wants, wanted{path: inner})
		}
	}
	if fetch, err = c.available(ctx, ref, opts, wants); err != nil {
		return 0, fmt.Errorf("container image %s: %w", ref, err)
	}
	return fetch, nil
}

func (c *Cache) available(ctx context.Context, ref string, opts GetOptions, wants []wanted) (int64, error) {
	from, err := c.parse(ref, opts.Keychain)
	if err != nil {
		return 0, err
	}
	policy, err := policyOf(opts.PullPolicy, from)
	if err != nil {
		return 0, err
	}
	known, isKnown := c.knownDigest(ref, from)
	held, err := c.holds(known, isKnown, wants)
	if err != nil || held && (policy != PullAlways || from.pinned() != "") {
		return 0, err
	}
	if policy == PullNever {
		return 0, fmt.Errorf("the pull policy is Never: %w", ErrNotCached)
	}
	digest, err := from.resolve(ctx)
	if err != nil {
		if held && canFallBack(ctx, err) {
			return 0, nil
		}
		return 0, fmt.Errorf("resolving it: %w", err)
	}
	if held, err = c.holds(digest.String(), true, wants); held || err != nil {
		return 0, err
	}
	image, err := from.open(ctx, digest)
	if err != nil {
		return 0, fmt.Errorf("reading its manifest: %w", err)
	}
	total := int64(0)
	for _, layer := range image.layers {
		total += layer.size
	}
	return total, errors.Join(image.close())
}

// holds reports whether the cache has all that is wanted of an image.
func (c *Cache) holds(digest string, isKnown bool, wants []wanted) (bool, error) {
	if !isKnown {
		return false, nil
	}
	for _, want := range wants {
		if _, ok, err := c.lookup(digest, want); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}
