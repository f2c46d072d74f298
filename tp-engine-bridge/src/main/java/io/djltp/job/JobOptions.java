package io.djltp.job;

import io.djltp.internal.Errors;
import io.djltp.internal.LibraryVersion;
import io.djltp.internal.environment.JobSecret;

import org.jspecify.annotations.Nullable;

import java.time.Duration;
import java.util.Locale;
import java.util.Map;

/** What the processes of a job agree on, and how long they wait for each other. */
public final class JobOptions {

    /** How long a process waits for the others when nothing else is said. */
    public static final Duration DEFAULT_TIMEOUT = Duration.ofMinutes(5);

    /** After how long a silent process counts as dead when nothing else is said. */
    public static final Duration DEFAULT_HEARTBEAT_TIMEOUT = Duration.ofSeconds(60);

    private static final String ENCRYPT_DATA = "TP_ENCRYPT_DATA";
    private static final Duration MIN_HEARTBEAT_TIMEOUT = Duration.ofMillis(100);
    private static final Duration MAX_TIME = Duration.ofDays(365);

    final int ranks;
    final byte @Nullable [] secret;
    final @Nullable Boolean encryptData;
    final Duration timeout;
    final Duration heartbeatTimeout;
    final String version;

    private JobOptions(Builder builder) {
        ranks = builder.ranks;
        secret = builder.secret == null ? JobSecret.given(builder.environment) : builder.secret;
        encryptData =
                builder.encryptData == null
                        ? encryptData(builder.environment.get(ENCRYPT_DATA))
                        : builder.encryptData;
        timeout = builder.timeout;
        heartbeatTimeout = builder.heartbeatTimeout;
        version = builder.version == null ? LibraryVersion.get() : builder.version;
    }

    private static @Nullable Boolean encryptData(@Nullable String text) {
        if (text == null || text.isBlank()) {
            return null;
        }
        return switch (text.strip().toLowerCase(Locale.ROOT)) {
            case "true" -> true;
            case "false" -> false;
            default ->
                    throw Errors.argument(
                            "The environment variable %s is '%s': set it to true or false, or unset"
                                    + " it",
                            ENCRYPT_DATA, text);
        };
    }

    /**
     * Creates a builder.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** Builds {@link JobOptions}. */
    public static final class Builder {

        private int ranks;
        private byte @Nullable [] secret;
        private @Nullable Boolean encryptData;
        private Duration timeout = DEFAULT_TIMEOUT;
        private Duration heartbeatTimeout = DEFAULT_HEARTBEAT_TIMEOUT;
        private @Nullable String version;
        private Map<String, String> environment = System.getenv();

        private Builder() {}

        /**
         * Sets the number of ranks of the whole job.
         *
         * @param ranks the number of ranks, a multiple of the number of processes
         * @return this builder
         */
        public Builder setRanks(int ranks) {
            this.ranks = ranks;
            return this;
        }

        /**
         * Sets the secret by which the processes know each other. Without it, that of the
         * environment variable {@code TP_SECRET}, or of the file that {@code TP_SECRET_FILE} names.
         *
         * @param secret the same long random bytes on all processes, or {@code null} for those of
         *     the environment
         * @return this builder
         */
        public Builder optSecret(byte @Nullable [] secret) {
            Errors.check(
                    secret == null || secret.length != 0,
                    "The secret has 0 bytes: give the same 16 random bytes or more to all"
                            + " processes");
            this.secret = secret == null ? null : secret.clone();
            return this;
        }

        /**
         * Sets whether what ranks of different processes exchange over the backend {@code tcp} is
         * encrypted, and ends the job if it was changed on the way. Without it, the environment
         * variable {@code TP_ENCRYPT_DATA} says so, {@code true} or {@code false}; without that, it
         * is encrypted unless all processes reach process 0 on loopback.
         *
         * <p>One process that wants it encrypted is enough; who trusts the network says {@code
         * false} in all processes. NCCL encrypts nothing. Amazon's Corretto Crypto Provider
         * encrypts if it is on the class path. Java's own AES needs its second compiler: with
         * {@code -XX:TieredStopAtLevel=1} it takes a hundred times as long.
         *
         * @param encrypt whether it is encrypted
         * @return this builder
         */
        public Builder optEncryptData(boolean encrypt) {
            this.encryptData = encrypt;
            return this;
        }

        /**
         * Sets how long a process waits for the others, in joining and in each exchange.
         *
         * @param timeout the time
         * @return this builder
         */
        public Builder optTimeout(Duration timeout) {
            checkTime("The time-out", timeout, Duration.ofMillis(1));
            this.timeout = timeout;
            return this;
        }

        /**
         * Sets after how long a silent process counts as dead. That of process 0 holds for all.
         *
         * @param timeout the time
         * @return this builder
         */
        public Builder optHeartbeatTimeout(Duration timeout) {
            checkTime("The heartbeat time-out", timeout, MIN_HEARTBEAT_TIMEOUT);
            this.heartbeatTimeout = timeout;
            return this;
        }

        /**
         * Sets the version of the library that the other processes must have too.
         *
         * @param version the version
         * @return this builder
         */
        public Builder optVersion(String version) {
            this.version = version;
            return this;
        }

        /**
         * Sets where the secret is looked for, in place of the environment of this process.
         *
         * @param environment the environment variables
         * @return this builder
         */
        public Builder optEnvironment(Map<String, String> environment) {
            this.environment = Map.copyOf(environment);
            return this;
        }

        /**
         * Builds the options.
         *
         * @return the options
         * @throws IllegalArgumentException if there is no rank, or an environment variable that is
         *     needed cannot be read
         */
        public JobOptions build() {
            Errors.check(ranks >= 1, "A job needs 1 rank or more, not %d: call setRanks", ranks);
            return new JobOptions(this);
        }

        private static void checkTime(String name, Duration time, Duration min) {
            if (time.compareTo(min) < 0 || time.compareTo(MAX_TIME) > 0) {
                throw Errors.argument(
                        "%s is %d ms: give %d ms or more, and a year at most",
                        name, time.toMillis(), min.toMillis());
            }
        }
    }
}
