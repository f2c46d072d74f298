package io.djltp.job;

import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.security.SecureRandom;

import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * How two sides prove to each other that they know a key, without saying it.
 *
 * <p>The side that accepts sends {@code HELLO, its nonce}. The side that connects answers {@code
 * HELLO, its nonce, the length of its payload, the payload, HMAC("client", both nonces, payload)},
 * and the side that accepts ends with {@code HMAC("server", both nonces, payload)}. The nonces make
 * every proof good for one connection only, the two words keep one side's proof from serving as the
 * other's.
 */
final class Proof {

    /** The bytes of a nonce, and of a proof. */
    static final int BYTES = 32;

    /** The most bytes of a payload. */
    static final int MAX_PAYLOAD = 4096;

    /** The words of the side that connects. */
    static final String CLIENT = "client";

    /** The words of the side that accepts. */
    static final String SERVER = "server";

    /** The first bytes of both sides: what this is, and the version of the protocol. */
    private static final byte[] HELLO = "DJLTPJ\0\1".getBytes(StandardCharsets.US_ASCII);

    private static final SecureRandom random = new SecureRandom();

    private Proof() {}

    /**
     * Returns the key of the control connections in one run of a job, see {@link
     * LaunchEnvironment}.
     */
    static byte[] controlKey(byte[] secret, String run) {
        return hmac(secret, bytes("control"), run.getBytes(StandardCharsets.UTF_8));
    }

    /** Returns the key of the connections between the ranks of one job. */
    static byte[] meshKey(byte[] secret, byte[] jobNonce) {
        return hmac(secret, bytes("mesh"), jobNonce);
    }

    static byte[] hello() {
        return HELLO.clone();
    }

    static byte[] nonce() {
        byte[] nonce = new byte[BYTES];
        random.nextBytes(nonce);
        return nonce;
    }

    static byte[] prove(byte[] key, String side, byte[] server, byte[] client, byte[] payload) {
        return hmac(key, bytes(side), server, client, payload);
    }

    static boolean equal(byte[] a, byte[] b) {
        // takes the same time wherever they differ
        return MessageDigest.isEqual(a, b);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }

    // all parts but the last have a fixed length, so that no two lists of parts look the same
    private static byte[] hmac(byte[] key, byte[]... parts) {
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(key, "HmacSHA256"));
            for (byte[] part : parts) {
                mac.update(part);
            }
            return mac.doFinal();
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException("Java without HmacSHA256", e);
        }
    }
}
