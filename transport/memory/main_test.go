package memory_test

import (
	"testing"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

func TestMain(m *testing.M) { devtest.Main(m) }
