package main

import (
	"context"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// page is the console's first page in a browser.
type page struct {
	t   *testing.T
	ctx context.Context

	mu    sync.Mutex
	wrong []string // errors and warnings that the browser has told
}

func openPage(t *testing.T, browser, address string) *page {
	t.Helper()
	p := &page{t: t}
	dir, err := os.MkdirTemp("", "millrace-chromium-") //nolint:usetesting // the browser's processes may still write into it when it has ended
	require.NoError(t, err)
	allocator, free := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(browser), chromedp.UserDataDir(dir), chromedp.NoSandbox)...)
	ctx, cancel := chromedp.NewContext(allocator)
	p.ctx = ctx
	var listening sync.WaitGroup
	t.Cleanup(func() {
		ending, late := context.WithTimeout(ctx, time.Minute)
		defer late()
		assert.NoError(t, chromedp.Cancel(ending))
		cancel()
		free()
		listening.Wait()
		assert.Eventually(t, func() bool { return os.RemoveAll(dir) == nil }, time.Minute, 50*time.Millisecond)
	})
	require.NoError(t, chromedp.Do(ctx), "start the browser")
	messages := chromedp.Console(ctx)
	listening.Go(func() {
		for m, err := range messages {
			if err != nil {
				return // the browser has ended
			}
			if m.Type == chromedp.ConsoleError || m.Type == chromedp.ConsoleException || m.Type == chromedp.ConsoleWarning {
				p.mu.Lock()
				p.wrong = append(p.wrong, m.String())
				p.mu.Unlock()
			}
		}
	})
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(address)))
	return p
}

// until waits until an expression of the page is true.
func (p *page) until(condition string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return p.is(condition) }, 2*time.Minute, 50*time.Millisecond, condition)
}

func (p *page) is(condition string) bool {
	yes, err := chromedp.Run(p.ctx, chromedp.Evaluate[bool]("Boolean("+condition+")"))
	return err == nil && yes
}

// The page changes while relays and consumers are killed: its counts go on after each of them is gone, in the same page, and nothing fails in it.
func TestConsoleIsLive(t *testing.T) {
	t.Parallel()
	browser := devtest.Chromium(t)
	cmd, out, address := withConsole(t, "-events", "6000", "-kills", "90")
	p := openPage(t, browser, address)
	p.until(`document.querySelector("#pipeline .v")`)
	// Counts without ages, which the page counts on by itself: of what waits, and of the shards that each relay holds.
	require.True(t, p.is(`(() => {
		window.seen = new Set();
		setInterval(() => window.seen.add([...document.querySelectorAll("#pipeline .v, #pipeline .meta")].map((e) => e.textContent).join("|")), 100);
		return true;
	})()`))
	for _, role := range []string{"relay", "consumer"} {
		kills := func() int { return strings.Count(out.String(), "SIGKILL "+role) }
		before := kills()
		require.Eventually(t, func() bool { return kills() > before }, 2*time.Minute, 20*time.Millisecond, role)
		require.True(t, p.is(`(window.seen.clear(), true)`), "it is the same page")
		p.until(`window.seen.size >= 3`)
	}
	p.until(`document.getElementById("lost").hidden && !document.querySelector("#trouble p") && document.querySelector("#pipeline .v")`)
	require.True(t, p.is(`window.seen`), "it is the same page")
	p.mu.Lock()
	assert.Empty(t, p.wrong)
	p.mu.Unlock()
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.Error(t, cmd.Wait())
	assert.Contains(t, out.String(), "everything that was started is gone")
}
