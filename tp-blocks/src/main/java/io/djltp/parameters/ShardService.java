package io.djltp.parameters;

import io.djltp.job.Job;
import io.djltp.sockets.RankSockets;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/**
 * Lets one process of a job ask the others for what their ranks hold, at any moment between two
 * steps, while they go on or wait for it: a thread of each process answers. So one process can save
 * the model without a word to the others, or all of them at once.
 *
 * <p>Weights change in nothing but a step, and no process gets through the next one without the one
 * that asks. A process that is behind answers when it has made its step.
 */
public final class ShardService implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(ShardService.class);
    private static final int BUFFER = 1 << 16;
    private static final Duration MARGIN = Duration.ofSeconds(5);
    private static final Duration VERDICT = Duration.ofSeconds(2);

    private final Job job;
    private final Duration timeout;
    private final Answer answers;
    private final SocketChannel[] asked; // by process: where this one asks
    // two processes may ask each other at the same time: a connection for each direction
    private final List<SocketChannel[][]> meshes = new ArrayList<>();
    private final Runnable takeBack;
    private long steps;
    private int answering;
    private boolean stepping;
    private volatile boolean closed;

    /** Writes what a process holds. */
    @FunctionalInterface
    interface Answer {

        /**
         * Writes the answer to a question.
         *
         * @param question what is asked for
         * @param out where the answer goes
         * @throws IOException if it cannot be sent
         */
        void write(int question, DataOutputStream out) throws IOException;
    }

    /** Reads an answer. */
    @FunctionalInterface
    interface Reading {

        /**
         * Reads the answer of a process.
         *
         * @param process the process
         * @param in where the answer comes from
         * @throws IOException if it does not come
         */
        void read(int process, DataInputStream in) throws IOException;
    }

    /**
     * Connects the processes. All of them call it.
     *
     * @param job the job
     * @param timeout how long one waits for another
     * @param answers what this process answers
     */
    ShardService(Job job, Duration timeout, Answer answers) {
        this.job = job;
        this.timeout = timeout;
        this.answers = answers;
        try {
            meshes.add(RankSockets.connect(job, "weights"));
            meshes.add(RankSockets.connect(job, "weights"));
        } catch (RuntimeException e) {
            closeChannels();
            throw e;
        }
        asked = new SocketChannel[job.getProcesses()];
        for (int process = 0; process < asked.length; process++) {
            if (process != job.getProcess()) {
                int up = job.getProcess() < process ? 0 : 1;
                int rank = process * job.getLocalRanks();
                asked[process] = meshes.get(up)[0][rank];
                SocketChannel questions = meshes.get(1 - up)[0][rank];
                Thread thread = new Thread(() -> answer(questions), "tp-weights-" + process);
                thread.setDaemon(true);
                thread.start();
            }
        }
        takeBack = job.onFailure(failure -> closeChannels());
    }

    /** Begins a step, when all answers about the one before are given. */
    public synchronized void beginStep() {
        boolean interrupted = false;
        while (answering > 0 && !closed) {
            try {
                wait();
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        stepping = true;
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /**
     * Ends a step.
     *
     * @param done the number of steps that are done
     */
    public synchronized void endStep(long done) {
        stepping = false;
        steps = done;
        notifyAll();
    }

    /**
     * Asks all other processes, one after another.
     *
     * @param question what for
     * @param reading what to do with each answer
     * @throws IllegalStateException if one does not answer, or has no answer
     */
    void ask(int question, Reading reading) {
        for (int process = 0; process < asked.length; process++) {
            if (asked[process] != null) {
                try {
                    ask(process, question, reading);
                } catch (IOException e) {
                    throw lost(process, e);
                }
            }
        }
    }

    private void ask(int process, int question, Reading reading) throws IOException {
        SocketChannel channel = asked[process];
        channel.socket().setSoTimeout((int) timeout.plus(MARGIN).toMillis());
        DataOutputStream out = new DataOutputStream(channel.socket().getOutputStream());
        long step;
        synchronized (this) {
            step = steps;
        }
        byte[] request = new byte[Long.BYTES + Integer.BYTES];
        ByteBuffer.wrap(request).putLong(step).putInt(question);
        out.write(request);
        DataInputStream in = new DataInputStream(channel.socket().getInputStream());
        String obstacle = in.readUTF();
        if (!obstacle.isEmpty()) {
            throw new IllegalStateException(job.getMember(process) + obstacle);
        }
        reading.read(process, in);
    }

    private RuntimeException lost(int process, IOException e) {
        RuntimeException failure = job.awaitFailure(VERDICT);
        if (failure != null) {
            return failure;
        }
        return new IllegalStateException(
                job.getMember(process)
                        + " has not sent its part of the weights: is its trainer closed? A model"
                        + " in training can be saved while the trainers of all processes are open",
                e);
    }

    private void answer(SocketChannel channel) {
        try {
            DataInputStream in = new DataInputStream(channel.socket().getInputStream());
            DataOutputStream out =
                    new DataOutputStream(
                            new BufferedOutputStream(channel.socket().getOutputStream(), BUFFER));
            while (!closed) {
                long step = in.readLong();
                int question = in.readInt();
                String obstacle = awaitStep(step);
                out.writeUTF(obstacle);
                if (obstacle.isEmpty()) {
                    try {
                        answers.write(question, out);
                    } finally {
                        answered();
                    }
                }
                out.flush();
            }
        } catch (EOFException e) {
            logger.debug("A process has closed its trainer");
        } catch (IOException e) {
            logger.debug("No more answers", e);
        } catch (RuntimeException e) {
            logger.error("The weights of this process cannot be sent", e);
            close(channel); // the other process learns of it
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Returns why the weights after a step cannot be had, or nothing, and then no step begins. */
    private synchronized String awaitStep(long step) throws InterruptedException {
        long end = System.nanoTime() + timeout.toNanos();
        while ((steps < step || stepping) && !closed) {
            long left = (end - System.nanoTime()) / 1_000_000;
            if (left <= 0) {
                return " has not come to step " + step + " in " + timeout.toMillis() + " ms";
            }
            wait(left);
        }
        if (closed) {
            return " has closed its trainer";
        }
        if (steps > step) {
            return " has made " + steps + " steps, and not " + step + " as the one that saves";
        }
        answering++;
        return "";
    }

    private synchronized void answered() {
        answering--;
        notifyAll();
    }

    @Override
    public void close() {
        synchronized (this) {
            closed = true;
            notifyAll();
        }
        takeBack.run();
        closeChannels();
    }

    private void closeChannels() {
        for (SocketChannel[][] mesh : meshes) {
            for (SocketChannel[] row : mesh) {
                for (SocketChannel channel : row) {
                    close(channel);
                }
            }
        }
    }

    private static void close(SocketChannel channel) {
        if (channel != null) {
            try {
                channel.close();
            } catch (IOException e) {
                logger.debug("A connection was closed already", e);
            }
        }
    }
}
