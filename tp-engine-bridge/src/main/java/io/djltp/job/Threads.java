package io.djltp.job;

/** Starts the threads of a job: daemons, so that none keeps a process alive. */
final class Threads {

    /** How the name of every thread of a job begins. */
    static final String PREFIX = "tp-job-";

    private Threads() {}

    static Thread start(String name, Runnable task) {
        Thread thread = new Thread(task, PREFIX + name);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }
}
