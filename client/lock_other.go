//go:build !unix

package client

import (
	"errors"
	"os"
)

func lockFile(string) (*os.File, error) {
	return nil, errors.New("this system has no lock that ends with its process, which an effect store needs")
}
