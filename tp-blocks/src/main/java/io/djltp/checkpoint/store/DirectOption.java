package io.djltp.checkpoint.store;

import java.nio.file.OpenOption;

/**
 * The option of the JDK to open a file past the page cache (O_DIRECT). It is in the module {@code
 * jdk.unsupported}: compilers warn of its name, and a virtual machine may lack it.
 */
final class DirectOption {

    private static final String NAME = "com.sun.nio.file.ExtendedOpenOption";

    private DirectOption() {}

    /**
     * Returns the option.
     *
     * @throws UnsupportedOperationException if this virtual machine does not have it
     */
    static OpenOption get() {
        try {
            for (Object constant : Class.forName(NAME).getEnumConstants()) {
                if (constant.toString().equals("DIRECT")) {
                    return (OpenOption) constant;
                }
            }
            throw new UnsupportedOperationException(NAME + " has no DIRECT");
        } catch (ClassNotFoundException e) {
            throw new UnsupportedOperationException("There is no " + NAME, e);
        }
    }
}
