package io.djltp.job;

/** A job of two members in one process, which loads what a process of any job does. */
final class TwoMembers {

    private TwoMembers() {}

    public static void main(String[] args) throws Exception {
        Jobs.run(2, 2, job -> job.exchange("up", new byte[0]));
    }
}
