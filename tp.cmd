@echo off
rem The tp command: tp.cmd of a clone, which builds what is missing, and bin\tp.cmd of the archive. Not run on a
rem Windows machine yet. In a clone, changed sources are not noticed: delete examples\target to build again.
setlocal
set "HERE=%~dp0"
set "JAVA=java"
if defined JAVA_HOME set "JAVA=%JAVA_HOME%\bin\java"
"%JAVA%" -version >nul 2>&1
if errorlevel 1 (
    echo tp: no Java found: install a JDK 17 or newer, or set JAVA_HOME 1>&2
    exit /b 2
)

rem In the environment: as an argument the class path can be too long for a command line.
set "OPTIONS=%HERE%..\lib\tp.options"
set "CLASSPATH=%HERE%..\lib\tp.jar"
if exist "%OPTIONS%" goto run

set "OPTIONS=%HERE%examples\tp.options"
set "STAMP=%HERE%examples\target\dependencies.txt"
if exist "%STAMP%" goto built
echo tp: building ... 1>&2
pushd "%HERE%"
call mvnw.cmd -q -B -ntp package -Dmaven.test.skip=true -Dfmt.skip -Dnullaway.skip 1>&2
if errorlevel 1 (
    popd
    exit /b 1
)
popd
:built
for /f "usebackq delims=" %%C in ("%STAMP%") do set "CLASSPATH=%HERE%examples\target\classes;%%C"

:run
rem Java's AES is slow without the optimizing compiler, and data between machines is encrypted.
set "COMPILER="
for %%V in (TP_SECRET TP_SECRET_FILE TP_ENCRYPT_DATA) do if defined %%V set "COMPILER=-XX:TieredStopAtLevel=4 -XX:CompileThresholdScaling=1"
if /i "%TP_ENCRYPT_DATA%" == "false" set "COMPILER="
"%JAVA%" "@%OPTIONS%" %COMPILER% -Dtp.command=tp %TP_JAVA_OPTS% io.djltp.examples.Tp %*
exit /b %errorlevel%
