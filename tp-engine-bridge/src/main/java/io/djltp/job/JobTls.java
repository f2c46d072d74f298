package io.djltp.job;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelDuplexHandler;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelPromise;

import org.bouncycastle.tls.AlertDescription;
import org.bouncycastle.tls.BasicTlsPSKExternal;
import org.bouncycastle.tls.CipherSuite;
import org.bouncycastle.tls.DefaultTlsClient;
import org.bouncycastle.tls.DefaultTlsServer;
import org.bouncycastle.tls.NamedGroup;
import org.bouncycastle.tls.PRFAlgorithm;
import org.bouncycastle.tls.ProtocolVersion;
import org.bouncycastle.tls.PskIdentity;
import org.bouncycastle.tls.PskKeyExchangeMode;
import org.bouncycastle.tls.TlsAuthentication;
import org.bouncycastle.tls.TlsClientProtocol;
import org.bouncycastle.tls.TlsFatalAlert;
import org.bouncycastle.tls.TlsFatalAlertReceived;
import org.bouncycastle.tls.TlsPSKExternal;
import org.bouncycastle.tls.TlsProtocol;
import org.bouncycastle.tls.TlsServerProtocol;
import org.bouncycastle.tls.crypto.TlsCrypto;
import org.bouncycastle.tls.crypto.impl.bc.BcTlsCrypto;
import org.jspecify.annotations.Nullable;

import java.io.EOFException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.SecureRandom;
import java.util.List;
import java.util.Vector;
import java.util.concurrent.CompletableFuture;

import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * TLS 1.3 between those who know the job's secret: an external pre-shared key (RFC 8446, 2.2 and
 * 4.2.11) with an exchange over X25519, and no certificates. Who has another key fails at the
 * binder of its first message; session keys are drawn for each connection, so that a secret that
 * becomes known later opens no recording.
 */
final class JobTls {

    /** What the key is for. Another protocol between the processes takes another name. */
    private static final byte[] IDENTITY = "djltp job 2".getBytes(StandardCharsets.US_ASCII);

    private final TlsCrypto crypto = new BcTlsCrypto(new SecureRandom());
    private final byte[] key;

    /**
     * Creates the TLS of a run of a job.
     *
     * @param secret the secret of the job
     * @param run what tells the run from others, see {@link io.djltp.environment.LaunchEnvironment}
     */
    JobTls(byte[] secret, String run) {
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(secret, mac.getAlgorithm()));
            key = mac.doFinal(("control" + run).getBytes(StandardCharsets.UTF_8));
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException("Java without HMAC of SHA-256", e);
        }
    }

    private TlsPSKExternal preShared() {
        return new BasicTlsPSKExternal(
                IDENTITY, crypto.createSecret(key.clone()), PRFAlgorithm.tls13_hkdf_sha256);
    }

    /** Says whether a handshake failed, here or at the other side, because their keys differ. */
    static boolean isOfAnotherKey(Exception e) {
        short alert = -1;
        if (e instanceof TlsFatalAlert raised) {
            alert = raised.getAlertDescription();
        } else if (e instanceof TlsFatalAlertReceived received) {
            alert = received.getAlertDescription();
        }
        return alert == AlertDescription.decrypt_error || alert == AlertDescription.bad_record_mac;
    }

    /** The side that connects. */
    final class Client extends DefaultTlsClient {

        Client() {
            super(crypto);
        }

        /** {@inheritDoc} */
        @Override
        protected ProtocolVersion[] getSupportedVersions() {
            return ProtocolVersion.TLSv13.only();
        }

        /** {@inheritDoc} */
        @Override
        protected int[] getSupportedCipherSuites() {
            return new int[] {CipherSuite.TLS_AES_128_GCM_SHA256};
        }

        /** {@inheritDoc} */
        @Override
        @SuppressWarnings("rawtypes")
        protected Vector getSupportedGroups(Vector roles) {
            return new Vector<>(List.of(NamedGroup.x25519));
        }

        /** {@inheritDoc} */
        @Override
        public Vector<TlsPSKExternal> getExternalPSKs() {
            return new Vector<>(List.of(preShared()));
        }

        /** {@inheritDoc} */
        @Override
        public short[] getPskKeyExchangeModes() {
            return new short[] {PskKeyExchangeMode.psk_dhe_ke};
        }

        /** {@inheritDoc} */
        @Override
        public TlsAuthentication getAuthentication() throws IOException {
            // by certificates, which a member does not have
            throw new TlsFatalAlert(AlertDescription.handshake_failure);
        }
    }

    /** The side that is connected to. */
    final class Server extends DefaultTlsServer {

        Server() {
            super(crypto);
        }

        /** {@inheritDoc} */
        @Override
        protected ProtocolVersion[] getSupportedVersions() {
            return ProtocolVersion.TLSv13.only();
        }

        /** {@inheritDoc} */
        @Override
        @SuppressWarnings("rawtypes")
        public @Nullable TlsPSKExternal getExternalPSK(Vector identities) {
            return identities.contains(new PskIdentity(IDENTITY, 0)) ? preShared() : null;
        }
    }

    /** Puts the bytes of a connection through TLS: sealed below this handler, in clear above it. */
    final class Handler extends ChannelDuplexHandler {

        private final CompletableFuture<Void> complete = new CompletableFuture<>();
        private final TlsProtocol protocol;
        private boolean otherKey;

        /**
         * Creates a handler.
         *
         * @param protocol the protocol of the side, on which nothing was done yet
         */
        Handler(TlsProtocol protocol) {
            this.protocol = protocol;
        }

        /** Returns what completes with the handshake. */
        CompletableFuture<Void> complete() {
            return complete;
        }

        /** Returns whether it is known that the other side has another key. */
        boolean hasOtherKey() {
            return otherKey;
        }

        /** {@inheritDoc} */
        @Override
        public void channelActive(ChannelHandlerContext context) throws IOException {
            if (protocol instanceof TlsClientProtocol client) {
                client.connect(new Client());
            } else {
                ((TlsServerProtocol) protocol).accept(new Server());
            }
            writeSealed(context, context.newPromise());
            context.flush();
            context.fireChannelActive();
        }

        /** {@inheritDoc} */
        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            ByteBuf sealed = (ByteBuf) message;
            byte[] bytes = ByteBufUtil.getBytes(sealed);
            sealed.release();
            try {
                protocol.offerInput(bytes);
            } catch (IOException | RuntimeException e) {
                otherKey |= JobTls.isOfAnotherKey(e);
                complete.completeExceptionally(e);
            }
            writeSealed(context, context.newPromise());
            context.flush();
            if (protocol.isConnected()) {
                complete.complete(null);
            }
            int count = protocol.getAvailableInputBytes();
            if (count > 0) {
                byte[] clear = new byte[count];
                protocol.readInput(clear, 0, count);
                context.fireChannelRead(Unpooled.wrappedBuffer(clear));
            }
            if (protocol.isClosed()) {
                context.close();
            }
        }

        /** {@inheritDoc} */
        @Override
        public void channelInactive(ChannelHandlerContext context) {
            complete.completeExceptionally(new EOFException("the connection was closed"));
            context.fireChannelInactive();
        }

        /** {@inheritDoc} */
        @Override
        public void write(ChannelHandlerContext context, Object message, ChannelPromise promise)
                throws IOException {
            ByteBuf clear = (ByteBuf) message;
            byte[] bytes = ByteBufUtil.getBytes(clear);
            clear.release();
            protocol.writeApplicationData(bytes, 0, bytes.length);
            writeSealed(context, promise);
        }

        private void writeSealed(ChannelHandlerContext context, ChannelPromise promise) {
            byte[] sealed = new byte[protocol.getAvailableOutputBytes()];
            protocol.readOutput(sealed, 0, sealed.length);
            context.write(Unpooled.wrappedBuffer(sealed), promise);
        }
    }
}
