package guestfiles

import (
	"encoding/base64"
	"fmt"

	"github.com/gitvirt/gitvirt/schemas"
)

// cloudInit returns user data and network data: what the Secrets resolved to, or the manifest's.
func (m Machine) cloudInit(volume, user, userBase64, network, networkBase64 string) (userData, networkData []byte, err error) {
	secret := m.Contents[schemas.VolumeContent(volume)]
	if userData, err = firstOf(secret[schemas.ContentUserData], user, userBase64); err != nil {
		return nil, nil, fmt.Errorf("userDataBase64: %w", err)
	}
	if networkData, err = firstOf(secret[schemas.ContentNetworkData], network, networkBase64); err != nil {
		return nil, nil, fmt.Errorf("networkDataBase64: %w", err)
	}
	return userData, networkData, nil
}

// firstOf returns the one that is there of a secret, a plain and a base64 value.
func firstOf(secret []byte, plain, encoded string) ([]byte, error) {
	switch {
	case len(secret) > 0:
		return secret, nil
	case plain != "":
		return []byte(plain), nil
	}
	// The error of the decoder names a position, never the value.
	return base64.StdEncoding.DecodeString(encoded)
}
