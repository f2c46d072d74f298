package io.djltp.environment;

import java.util.Map;
import java.util.Objects;

/** Environment variables of launchers, read with errors that name the variable and the remedy. */
final class LaunchVariables {

    static final String MASTER_ADDR = "MASTER_ADDR";
    static final String MASTER_PORT = "MASTER_PORT";
    static final String LOOPBACK = "127.0.0.1";
    static final int MAX_PORT = 65535;

    private static final String OWN_PORT = "TP_MASTER_PORT";

    private final Map<String, String> environment;

    LaunchVariables(Map<String, String> environment) {
        this.environment =
                Objects.requireNonNull(environment, "environment is null: give System.getenv()");
    }

    boolean isSet(String name) {
        return get(name) != null;
    }

    /** Returns a value without blanks around it, or {@code null} if it is not set or blank. */
    String get(String name) {
        String value = environment.get(name);
        return value == null || value.isBlank() ? null : value.trim();
    }

    /** Returns the host of process 0, or {@code null} if it is not said. */
    String masterAddress() {
        return get(MASTER_ADDR);
    }

    /** Returns the port of process 0, or 0 if it is not said. */
    int masterPort() {
        return port(MASTER_PORT);
    }

    /** Returns the port that stands above that of the launcher, or 0 if there is none. */
    int ownPort() {
        return port(OWN_PORT);
    }

    int count(String name, String partner) {
        if (!isSet(name)) {
            throw missing(
                    name,
                    partner + "=" + environment.get(partner),
                    "to the number of processes, or unset " + partner);
        }
        int value = number(name, "a number of processes, 1 or more");
        if (value < 1) {
            throw malformed(name, environment.get(name), "a number of processes, 1 or more");
        }
        return value;
    }

    int index(String name, String size, int count) {
        if (!isSet(name)) {
            throw missing(
                    name,
                    size + "=" + environment.get(size),
                    "to the number of this process, from 0, or unset " + size);
        }
        String wanted = "a number from 0 to %d, because %s=%d".formatted(count - 1, size, count);
        int value = number(name, wanted);
        if (value < 0 || value >= count) {
            throw malformed(name, environment.get(name), wanted);
        }
        return value;
    }

    int localIndex(String name) {
        if (!isSet(name)) {
            return 0;
        }
        String wanted = "the number of this process on its machine, from 0";
        int value = number(name, wanted);
        if (value < 0) {
            throw malformed(name, environment.get(name), wanted);
        }
        return value;
    }

    private int port(String name) {
        if (!isSet(name)) {
            return 0;
        }
        String wanted = "a port from 1 to " + MAX_PORT;
        int port = number(name, wanted);
        if (port < 1 || port > MAX_PORT) {
            throw malformed(name, environment.get(name), wanted);
        }
        return port;
    }

    private int number(String name, String wanted) {
        try {
            return Integer.parseInt(get(name));
        } catch (NumberFormatException e) {
            throw malformed(name, environment.get(name), wanted);
        }
    }

    static IllegalArgumentException malformed(String name, String value, String wanted) {
        return new IllegalArgumentException(
                "The environment variable %s is '%s': set it to %s".formatted(name, value, wanted));
    }

    static IllegalArgumentException missing(String name, String other, String remedy) {
        return new IllegalArgumentException(
                "The environment variable %s is not set although %s: set it %s"
                        .formatted(name, other, remedy));
    }
}
