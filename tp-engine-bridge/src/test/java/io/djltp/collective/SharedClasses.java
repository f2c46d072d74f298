package io.djltp.collective;

import org.testng.IExecutionListener;

import java.io.File;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Predicate;
import java.util.stream.Collectors;

/**
 * An archive of the classes of the jars, already parsed and verified, for the JVMs that tests
 * start: reading 2,000 classes of DJL and of the preset takes a third of the time until the first
 * operation, and 700 of Netty and BouncyCastle half of the time until a job has come together.
 *
 * <p>A listener of the whole run of tests: the first JVM of a module makes the archive beside its
 * tests, where the build names a file in {@value #FILE} and in {@value #MAIN} a program that loads
 * what most tests load. What the started JVMs are to be given is in {@value #OPTION} as soon as the
 * archive is there: a file of options, which {@link ForkOptions} writes. A JVM that the archive
 * does not fit, because its class path is another, reads its classes as ever and says nothing.
 */
public final class SharedClasses implements IExecutionListener {

    private static final String FILE = "djltp.test.archive";
    private static final String MAIN = "djltp.test.archive.main";
    private static final String OPTION = "djltp.test.archive.option";
    private static final String JOB = "io.djltp.job.TwoMembers"; // Netty's and BouncyCastle's
    private static final int MINUTES = 4; // of a machine that has much else to do
    private static final String CLASS_PATH = "java.class.path";
    private static final AtomicBoolean BEGUN = new AtomicBoolean();

    @Override
    public void onExecutionStart() {
        String file = System.getProperty(FILE);
        // surefire may execute each class for itself
        if (file == null || !BEGUN.compareAndSet(false, true)) {
            return;
        }
        // an archive holds for class paths that begin as its own does; it takes no folders
        System.setProperty(
                CLASS_PATH, jars() + File.pathSeparator + entries(entry -> !isJar(entry)));
        Path archive = Path.of(file);
        if (isMade(archive)) {
            offer(archive);
            return;
        }
        // tests do not wait for it: the JVMs that they start before it is there read all themselves
        Thread maker = new Thread(() -> makeOnce(archive), "shared-classes");
        maker.setDaemon(true);
        maker.start();
    }

    private static void makeOnce(Path archive) {
        try (FileChannel lock =
                        FileChannel.open(
                                Path.of(archive + ".lock"),
                                StandardOpenOption.CREATE,
                                StandardOpenOption.WRITE);
                FileLock held = lock.lock()) {
            if (held.isValid() && !isMade(archive)) {
                make(archive);
            }
            offer(archive);
        } catch (IOException e) {
            // then there is none
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static void offer(Path archive) {
        System.setProperty(OPTION, "@" + new ForkOptions(archive).getFile());
    }

    /** An archive of another class path would stay unused. */
    private static boolean isMade(Path archive) {
        Path path = pathOf(archive);
        try {
            return Files.exists(archive)
                    && Files.exists(new ForkOptions(archive).getFile())
                    && Files.exists(path)
                    && Files.readString(path).equals(jars());
        } catch (IOException e) {
            return false; // it is being written
        }
    }

    private static Path pathOf(Path archive) {
        return Path.of(archive + ".path");
    }

    private static void make(Path archive) throws IOException, InterruptedException {
        // of names of their own: what a JVM that ends leaves behind may still write to others
        Path folder = Files.createTempDirectory(archive.toAbsolutePath().getParent(), "jars");
        Path made = folder.resolve("jars.jsa");
        ForkOptions options = new ForkOptions(archive);
        try {
            options.write();
            Path list = folder.resolve("all.classes");
            Files.write(list, classes(folder, List.of(System.getProperty(MAIN), JOB)));
            java(
                    List.of(
                            "-Xshare:dump",
                            options.getUnsignedJars(),
                            "-XX:SharedClassListFile=" + list,
                            "-XX:SharedArchiveFile=" + made,
                            "-cp",
                            jars()));
            Files.move(made, archive, StandardCopyOption.ATOMIC_MOVE);
            Files.writeString(pathOf(archive), jars());
        } finally {
            for (String name : folder.toFile().list()) {
                Files.delete(folder.resolve(name));
            }
            Files.delete(folder);
        }
    }

    /** What the programs load, and what the JDK's own archive has, whose place this one takes. */
    private static Set<String> classes(Path folder, List<String> programs)
            throws IOException, InterruptedException {
        Set<String> lines = new LinkedHashSet<>();
        Path usual = Path.of(System.getProperty("java.home"), "lib", "classlist");
        if (Files.exists(usual)) {
            lines.addAll(Files.readAllLines(usual));
        }
        for (int i = 0; i < programs.size(); i++) {
            Path list = folder.resolve(i + ".classes");
            List<String> load = new ArrayList<>(List.of("-XX:DumpLoadedClassList=" + list));
            load.addAll(List.of("-Dai.djl.offline=true", "-cp", System.getProperty(CLASS_PATH)));
            load.addAll(List.of(programs.get(i).split(" ")));
            java(load);
            lines.addAll(Files.readAllLines(list));
        }
        return lines;
    }

    private static void java(List<String> arguments) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(List.of("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"));
        command.addAll(arguments);
        Process process =
                new ProcessBuilder(command)
                        .redirectErrorStream(true)
                        .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                        .start();
        try {
            process.waitFor(MINUTES, TimeUnit.MINUTES);
        } finally {
            process.destroyForcibly();
        }
    }

    private static String jars() {
        return entries(SharedClasses::isJar);
    }

    private static boolean isJar(String entry) {
        return entry.endsWith(".jar");
    }

    private static String entries(Predicate<String> chosen) {
        return Arrays.stream(System.getProperty(CLASS_PATH).split(File.pathSeparator))
                .filter(chosen)
                .collect(Collectors.joining(File.pathSeparator));
    }
}
