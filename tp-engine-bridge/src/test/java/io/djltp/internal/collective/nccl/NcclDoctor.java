package io.djltp.internal.collective.nccl;

/** Says what the backend finds on this machine, without a double. */
final class NcclDoctor {

    private NcclDoctor() {}

    public static void main(String[] args) {
        String first = NcclLibrary.whyNot().orElse("NCCL " + version());
        System.out.println(first);
        String second = NcclLibrary.whyNot().orElse("NCCL " + version());
        System.out.println("and again: " + (second.equals(first) ? "the same" : second));
    }

    private static String version() {
        return NcclLibrary.whyNot().isPresent() ? "none" : NcclLibrary.version();
    }
}
