/** Contains how processes are admitted to a job. */
package io.djltp.internal.environment;
