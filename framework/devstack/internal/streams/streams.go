// Package streams stands before Google's emulator of Pub/Sub, and ends the streams of clients that are gone.
package streams

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// streamEnd bounds the wait for the emulator to end a stream whose client is gone.
const streamEnd = 5 * time.Second

// clientSilence is after how long a client that says nothing is asked whether it is there, and how long it has to answer.
const clientSilence = 10 * time.Second

// Front stands before Google's emulator, on a port of its own, because the emulator (0.8.20) does not notice that a
// client of StreamingPull is gone: it goes on sending messages to the streams of a killed consumer, in turn with those
// of living ones, and each message sent so is away for an ack deadline. It does end a stream that its client half-closes.
// So the front passes everything on unread, and half-closes the streams of clients that went away, with or without a word.
type Front struct {
	Address  string
	server   *grpc.Server
	emulator *grpc.ClientConn
	serving  sync.WaitGroup
	streams  sync.WaitGroup
}

// Start begins to pass calls on to the emulator at this host:port.
func Start(emulator string) (*Front, error) {
	conn, err := grpc.NewClient(emulator, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	f := &Front{Address: l.Addr().String(), emulator: conn}
	f.server = grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.MaxRecvMsgSize(1<<30), grpc.UnknownServiceHandler(f.pass),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: clientSilence, Timeout: clientSilence}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: clientSilence / 2, PermitWithoutStream: true}))
	f.serving.Go(func() { _ = f.server.Serve(l) }) // ends with Stop
	return f, nil
}

// Stop ends the calls and the server.
func (f *Front) Stop() error {
	f.server.Stop()
	f.serving.Wait()
	err := f.emulator.Close()
	f.streams.Wait()
	return err
}

// pass connects one call of a client with one to the emulator.
func (f *Front) pass(_ any, client grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(client)
	if !ok {
		return status.Error(codes.Internal, "no method")
	}
	ctx := client.Context()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	// Not cancelled with the client's call, which is what the emulator does not notice.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	emulator, err := f.emulator.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	gone := context.AfterFunc(client.Context(), func() { time.AfterFunc(streamEnd, cancel) })
	defer gone()
	f.streams.Add(1)
	defer f.streams.Done()
	f.streams.Go(func() {
		_ = forward(emulator, client) // ends when the client has sent all, or is gone
		_ = emulator.CloseSend()
	})
	return receive(client, emulator)
}

func forward(to interface{ SendMsg(any) error }, from interface{ RecvMsg(any) error }) error {
	for {
		var m mem.BufferSlice
		if err := from.RecvMsg(&m); err != nil {
			return err
		}
		if err := to.SendMsg(&m); err != nil {
			return err
		}
	}
}

// receive passes headers, messages and trailers down until the emulator ends the call, also when nobody listens any more.
func receive(client grpc.ServerStream, emulator grpc.ClientStream) error {
	if md, err := emulator.Header(); err == nil {
		_ = client.SendHeader(md)
	}
	for {
		var m mem.BufferSlice
		err := emulator.RecvMsg(&m)
		switch {
		case errors.Is(err, io.EOF):
			client.SetTrailer(emulator.Trailer())
			return nil
		case err != nil:
			client.SetTrailer(emulator.Trailer())
			return err
		}
		_ = client.SendMsg(&m) // fails when the client is gone; then the rest is drained
	}
}

// rawCodec passes messages on as the bytes that they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) { return *v.(*mem.BufferSlice), nil }

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	*v.(*mem.BufferSlice) = data
	return nil
}

func (rawCodec) Name() string { return "proto" }
