// Package streams is a proxy in front of Google's Pub/Sub emulator. It ends the streams of clients that are gone.
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

// clientSilence is after how much silence a client gets a keepalive ping, and how long it may take to answer it.
const clientSilence = 10 * time.Second

// Front is a proxy in front of Google's emulator, on its own port. It exists because the emulator (0.8.20) does not notice that a
// StreamingPull client is gone: it goes on sending messages to the streams of a killed consumer, in turn with those of live ones, and
// each such message is lost for an ack deadline. The emulator does end a stream that its client half-closes. So the front forwards
// everything unread, and half-closes the streams of clients that disconnected or stopped answering.
type Front struct {
	Address  string
	server   *grpc.Server
	emulator *grpc.ClientConn
	serving  sync.WaitGroup
	streams  sync.WaitGroup
}

// Start begins to forward calls to the emulator at this host:port.
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

// pass connects a client's call with a new call to the emulator.
func (f *Front) pass(_ any, client grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(client)
	if !ok {
		return status.Error(codes.Internal, "no method")
	}
	ctx := client.Context()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	// It is not cancelled with the client's call, because the emulator does not notice that.
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
		_ = forward(emulator, client) // returns when the client has sent everything or is gone
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

// receive forwards headers, messages and trailers to the client until the emulator ends the call, even if the client is gone.
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
		_ = client.SendMsg(&m) // fails if the client is gone; the rest is read and dropped
	}
}

// rawCodec forwards messages as raw bytes.
type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) { return *v.(*mem.BufferSlice), nil }

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	*v.(*mem.BufferSlice) = data
	return nil
}

func (rawCodec) Name() string { return "proto" }
