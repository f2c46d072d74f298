/** Contains how processes are admitted to a job. */
@NullMarked
package io.djltp.internal.environment;

import org.jspecify.annotations.NullMarked;
