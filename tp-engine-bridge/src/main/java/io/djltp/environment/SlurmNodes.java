package io.djltp.environment;

/** Reads lists of hosts as Slurm writes them, such as {@code gpu[003-007,12],cpu1}. */
final class SlurmNodes {

    private SlurmNodes() {}

    /**
     * Returns the first host of a list.
     *
     * @param variable the variable that holds the list
     * @param list the list
     * @return the name of the host
     */
    static String first(String variable, String list) {
        StringBuilder host = new StringBuilder();
        int i = 0;
        while (i < list.length() && list.charAt(i) != ',') {
            char c = list.charAt(i);
            if (c == '[') {
                int end = list.indexOf(']', i);
                String range = end < 0 ? "" : list.substring(i + 1, end);
                String number = range.split("[-,]", 2)[0].trim();
                if (number.isEmpty() || !number.chars().allMatch(Character::isLetterOrDigit)) {
                    throw malformed(variable, list);
                }
                host.append(number);
                i = end;
            } else if (c == ']') {
                throw malformed(variable, list);
            } else {
                host.append(c);
            }
            i++;
        }
        String name = host.toString().trim();
        if (name.isEmpty()) {
            throw malformed(variable, list);
        }
        return name;
    }

    private static IllegalArgumentException malformed(String variable, String list) {
        return new IllegalArgumentException(
                ("The environment variable %s is '%s', which is not a list of hosts such as"
                                + " gpu[01-04],cpu1: set MASTER_ADDR to the host of process 0")
                        .formatted(variable, list));
    }
}
