package io.djltp.testing;

import org.objectweb.asm.ClassReader;
import org.objectweb.asm.ClassVisitor;
import org.objectweb.asm.ClassWriter;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;
import org.objectweb.asm.Type;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.lang.instrument.ClassFileTransformer;
import java.lang.instrument.Instrumentation;
import java.lang.instrument.UnmodifiableClassException;
import java.security.ProtectionDomain;
import java.util.Arrays;
import java.util.concurrent.atomic.LongAdder;

/**
 * Counts how often this library and JavaCPP take a lock: it changes their classes so that {@code
 * synchronized} and {@code lock()} tell. Whether a thread had to wait for the lock makes no
 * difference. The classes are as before when it is closed.
 */
public final class LockCounter implements ClassFileTransformer, AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(LockCounter.class);
    private static final LongAdder TAKEN = new LongAdder();

    private final Instrumentation jvm;

    /**
     * Begins to count.
     *
     * @throws UnmodifiableClassException if a class cannot be changed
     * @throws ReflectiveOperationException if the virtual machine takes no agent
     */
    public LockCounter() throws UnmodifiableClassException, ReflectiveOperationException {
        // by its name: the class has annotations that javac does not find
        Class<?> agent = Class.forName("net.bytebuddy.agent.ByteBuddyAgent");
        jvm = (Instrumentation) agent.getMethod("install").invoke(null);
        jvm.addTransformer(this, true);
        change();
    }

    private void change() throws UnmodifiableClassException {
        change(
                Arrays.stream(jvm.getAllLoadedClasses())
                        .filter(it -> isCounted(it.getName().replace('.', '/')))
                        .filter(jvm::isModifiableClass)
                        .toArray(Class<?>[]::new));
    }

    /** Changes all classes at once, because each call stops every thread and reads all code. */
    private void change(Class<?>... types) throws UnmodifiableClassException {
        try {
            jvm.retransformClasses(types);
        } catch (InternalError e) {
            // the initializer of one has failed, such as in another test: it takes no lock
            if (types.length == 1) {
                logger.debug("{} stays as it is", types[0], e);
            } else {
                int half = types.length / 2;
                change(Arrays.copyOfRange(types, 0, half));
                change(Arrays.copyOfRange(types, half, types.length));
            }
        }
    }

    private static boolean isCounted(String name) {
        return name.startsWith("io/djltp/") || name.startsWith("org/bytedeco/javacpp/");
    }

    /** {@return the locks that were taken so far} */
    public long taken() {
        return TAKEN.sum();
    }

    /** Notes that a lock is taken. */
    public static void take() {
        TAKEN.increment();
    }

    /** {@inheritDoc} */
    @Override
    public byte[] transform(
            ClassLoader loader, String name, Class<?> type, ProtectionDomain domain, byte[] bytes) {
        if (!isCounted(name)) {
            return null;
        }
        ClassReader reader = new ClassReader(bytes);
        ClassWriter writer = new ClassWriter(reader, 0);
        reader.accept(new Locks(writer), 0);
        return writer.toByteArray();
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws UnmodifiableClassException {
        jvm.removeTransformer(this);
        change();
    }

    /** Puts a call of {@link #take} before each lock. */
    private static final class Locks extends ClassVisitor {

        Locks(ClassVisitor next) {
            super(Opcodes.ASM9, next);
        }

        @Override
        public MethodVisitor visitMethod(
                int access, String name, String descriptor, String signature, String[] exceptions) {
            MethodVisitor next = super.visitMethod(access, name, descriptor, signature, exceptions);
            return new MethodVisitor(Opcodes.ASM9, next) {
                @Override
                public void visitCode() {
                    super.visitCode();
                    if ((access & Opcodes.ACC_SYNCHRONIZED) != 0) {
                        take();
                    }
                }

                @Override
                public void visitInsn(int opcode) {
                    if (opcode == Opcodes.MONITORENTER) {
                        take();
                    }
                    super.visitInsn(opcode);
                }

                @Override
                public void visitMethodInsn(
                        int opcode, String owner, String called, String type, boolean ofInterface) {
                    if (owner.startsWith("java/util/concurrent/locks/") && called.equals("lock")) {
                        take();
                    }
                    super.visitMethodInsn(opcode, owner, called, type, ofInterface);
                }

                private void take() {
                    String self = Type.getInternalName(LockCounter.class);
                    super.visitMethodInsn(Opcodes.INVOKESTATIC, self, "take", "()V", false);
                }
            };
        }
    }
}
