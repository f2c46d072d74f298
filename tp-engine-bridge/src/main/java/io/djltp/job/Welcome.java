package io.djltp.job;

import java.io.DataInputStream;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/**
 * What the master says when all have come. Its times hold for all.
 *
 * @param nonce a random number of the job's own
 * @param timeout how long an exchange may take
 * @param heartbeatTimeout after how long a silent process counts as dead
 * @param members what all processes said, in their order
 */
record Welcome(byte[] nonce, Duration timeout, Duration heartbeatTimeout, List<Hello> members) {

    Message encode() {
        return new Message(
                Message.Type.WELCOME,
                Payload.of(
                        out -> {
                            Payload.writeBytes(out, nonce);
                            out.writeLong(timeout.toMillis());
                            out.writeLong(heartbeatTimeout.toMillis());
                            out.writeInt(members.size());
                            for (Hello member : members) {
                                Payload.writeBytes(out, member.encode());
                            }
                        }));
    }

    static Welcome decode(Message message) throws IOException {
        DataInputStream in = Payload.reader(message.body());
        byte[] nonce = Payload.readBytes(in);
        Duration timeout = Duration.ofMillis(in.readLong());
        Duration heartbeatTimeout = Duration.ofMillis(in.readLong());
        int count = in.readInt();
        List<Hello> members = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            members.add(Hello.decode(Payload.readBytes(in)));
        }
        return new Welcome(nonce, timeout, heartbeatTimeout, members);
    }

    List<JobMember> jobMembers() {
        return members.stream().map(Hello::member).toList();
    }
}
