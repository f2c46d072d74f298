/** Tests of the commands for a user's own data. */
package io.djltp.examples.classes;
